// HeapCheck BLOCKS: fills so many blocks of the heap again and again, so that the collector moves them,
// and looks at every byte in the end.
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;

public class HeapCheck {
  private static final int ROUNDS = 4;

  private static byte valueOf(int block, int round) {
    return (byte) (block * 7 + round);
  }

  public static void main(String[] arguments) {
    int count = Integer.parseInt(arguments[0]);
    Map<Integer, byte[]> blocks = new HashMap<>();
    for (int round = 0; round < ROUNDS; ++round) {
      for (int i = 0; i < count; ++i) {
        byte[] block = new byte[1024];
        Arrays.fill(block, valueOf(i, round));
        blocks.put(i, block);
      }
    }
    for (int i = 0; i < count; ++i) {
      for (byte value : blocks.get(i)) {
        if (value != valueOf(i, ROUNDS - 1)) throw new AssertionError("block " + i);
      }
    }
    System.out.println(count + " blocks are right");
  }
}
