// Collected COUNT: a map of so many objects, of which each round replaces some, so that the collector
// moves what stays; two threads do so at once, and look at each object in the end.
import java.util.HashMap;
import java.util.Map;

public class Collected {
  private static final int ROUNDS = 4;

  private record Item(int number, int round, byte[] bytes, Item former) {}

  private static byte byteOf(int number, int round, int place) {
    return (byte) (number * 31 + round * 7 + place);
  }

  private static Item make(int number, int round, Item former) {
    byte[] bytes = new byte[64 + number % 900];
    for (int place = 0; place < bytes.length; ++place) bytes[place] = byteOf(number, round, place);
    return new Item(number, round, bytes, former == null ? null : new Item(number, former.round, former.bytes, null));
  }

  private static void check(Item item, int number, int round) {
    if (item.number != number || item.round != round || item.bytes.length != 64 + number % 900)
      throw new AssertionError("item " + number + " in round " + round);
    for (int place = 0; place < item.bytes.length; ++place)
      if (item.bytes[place] != byteOf(number, round, place)) throw new AssertionError("byte of item " + number);
  }

  private static void work(int first, int count) {
    Map<Integer, Item> items = new HashMap<>();
    for (int i = first; i < first + count; ++i) items.put(i, make(i, 0, null));
    for (int round = 1; round < ROUNDS; ++round)
      for (int i = first; i < first + count; ++i)
        if (i % ROUNDS <= round) items.put(i, make(i, round, items.get(i)));
    for (int i = first; i < first + count; ++i) {
      check(items.get(i), i, ROUNDS - 1);
      if (i % ROUNDS < ROUNDS - 1) check(items.get(i).former(), i, ROUNDS - 2);
    }
  }

  public static void main(String[] arguments) throws Exception {
    int count = Integer.parseInt(arguments[0]);
    Throwable[] failure = new Throwable[1];
    Thread[] threads = new Thread[2];
    for (int t = 0; t < threads.length; ++t) {
      int first = t * count / 2;
      threads[t] = new Thread(() -> work(first, count / 2));
      threads[t].setUncaughtExceptionHandler((thread, error) -> failure[0] = error);
      threads[t].start();
    }
    for (Thread thread : threads) thread.join();
    if (failure[0] != null) {
      failure[0].printStackTrace();
      System.exit(1);
    }
    System.out.println(count + " items are right");
  }
}
