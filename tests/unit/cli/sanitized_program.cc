// Built with several sanitizers; it only needs to exist.
int main() {
  return 0;
}
