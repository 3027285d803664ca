import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.Locale;

/**
 * Counts rows, and prints the times of the last three quarters, whose begin it tells by a line. In
 * the first one the virtual machine compiles what the rest runs.
 */
final class Clock {
    private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private final long wanted;
    private long rows;
    private long first;
    private long startedNs;
    private long startedCpuNs;

    Clock(long wanted) {
        this.wanted = wanted;
    }

    synchronized void count(long more) {
        rows += more;
        if (first == 0 && rows >= wanted / 4) {
            first = rows;
            startedNs = System.nanoTime();
            startedCpuNs = SYSTEM.getProcessCpuTime();
            System.out.println("begun");
            System.out.flush();
        }
        if (rows < wanted) {
            return;
        }
        System.out.println(String.format(Locale.ROOT,
                "{\"rows\": %d, \"seconds\": %.6f, \"cpu_seconds\": %.6f}",
                rows - first, (System.nanoTime() - startedNs) / 1e9,
                (SYSTEM.getProcessCpuTime() - startedCpuNs) / 1e9));
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
