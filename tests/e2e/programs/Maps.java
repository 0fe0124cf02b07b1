// Maps KEYS: maps that are changed and checked until standard input ends.
import java.util.HashMap;
import java.util.Map;

public class Maps {
  private static volatile boolean over;

  private static String textOf(int key, int round) {
    return (key * 7919 + "-" + round + " ").repeat(20);
  }

  public static void main(String[] arguments) throws Exception {
    int keys = Integer.parseInt(arguments[0]);
    Map<Integer, String> texts = new HashMap<>();
    for (int key = 0; key < keys; ++key) texts.put(key, textOf(key, 0));
    Thread end = new Thread(() -> {
      try {
        while (System.in.read() >= 0) {}
      } catch (java.io.IOException ignored) {
      }
      over = true;
    });
    end.start();
    System.out.println("ready");
    int rounds = 0;
    int wrong = 0;
    while (!over) {
      for (int key = 0; key < keys; ++key) {
        if (!texts.get(key).equals(textOf(key, rounds))) ++wrong;
        texts.put(key, textOf(key, rounds + 1));
      }
      ++rounds;
    }
    System.out.println("maps " + rounds + " " + wrong);
    if (wrong > 0) System.exit(1);
  }
}
