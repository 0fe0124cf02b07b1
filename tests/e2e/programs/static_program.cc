// Statically linked: no library can be preloaded into it.
int main() {
  return 0;
}
