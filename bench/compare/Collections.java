// Collections COUNT: a map of so many orders by number, an index of them by customer in trees, and lists;
// then lookups, removals and replacements, and each index is compared with the other at the end.
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

public class Collections {
  private static final int LINES = 4;

  private record Order(long number, int customer, String note, List<Integer> amounts) {}

  private final int count, customers;
  private final Map<Long, Order> orders = new HashMap<>();
  private final TreeMap<Integer, TreeMap<Long, Order>> byCustomer = new TreeMap<>();
  private long state = 1, checksum;

  private Collections(int count) {
    this.count = count;
    this.customers = Math.max(1, count / 20);
  }

  private int below(int bound) {
    state = state * 6364136223846793005L + 1442695040888963407L;
    return (int) ((state >>> 33) % bound);
  }

  private void put(long number) {
    Order former = orders.get(number);
    if (former != null) byCustomer.get(former.customer).remove(number);
    List<Integer> amounts = new ArrayList<>();
    for (int line = 0; line < LINES; ++line) amounts.add(below(100_000));
    Order order = new Order(number, below(customers), "order-" + number + "-" + below(1_000_000), amounts);
    orders.put(number, order);
    byCustomer.computeIfAbsent(order.customer, customer -> new TreeMap<>()).put(number, order);
  }

  private void run() {
    for (long number = 0; number < count; ++number) put(number);
    for (int i = 0; i < count / 2; ++i) put(below(count));
    for (int i = 0; i < 2 * count; ++i) {
      Order order = orders.get((long) below(count));
      checksum = checksum * 31 + order.note.hashCode() + order.amounts.get(i % LINES);
    }
    long found = 0;
    for (Map.Entry<Integer, TreeMap<Long, Order>> customer : byCustomer.entrySet())
      for (Map.Entry<Long, Order> entry : customer.getValue().entrySet()) {
        Order order = entry.getValue();
        if (order.customer != customer.getKey() || orders.get(entry.getKey()) != order)
          throw new AssertionError("order " + entry.getKey() + " is not in both");
        for (int amount : order.amounts) checksum += amount;
        ++found;
      }
    if (found != count) throw new AssertionError(found + " orders of " + count);
    System.out.println(found + " orders, " + checksum);
  }

  public static void main(String[] arguments) {
    new Collections(Integer.parseInt(arguments[0])).run();
  }
}
