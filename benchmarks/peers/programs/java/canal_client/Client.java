import com.alibaba.otter.canal.client.CanalConnector;
import com.alibaba.otter.canal.client.CanalConnectors;
import com.alibaba.otter.canal.protocol.CanalEntry;
import com.alibaba.otter.canal.protocol.Message;
import java.net.InetSocketAddress;
import java.sql.Types;
import java.util.Locale;
import java.util.concurrent.TimeUnit;

/**
 * Consumes ROWS rows of the destination `example` with Canal's own client, every row change parsed
 * and every value looked at. Behind the last one it prints what it looked at, and then the times.
 *
 * <p>Arguments: HOST PORT FILTER SIZE ROWS.
 */
public final class Client {
    public static void main(String[] a) throws Exception {
        long wanted = Long.parseLong(a[4]);
        int size = Integer.parseInt(a[3]);
        Clock clock = new Clock(wanted);
        CanalConnector connector = CanalConnectors.newSingleConnector(
                new InetSocketAddress(a[0], Integer.parseInt(a[1])), "example", "", "");
        connector.connect();
        connector.subscribe(a[2]);
        long rows = 0;
        long columns = 0;
        long characters = 0;
        while (true) {
            Message message = connector.getWithoutAck(size, 100L, TimeUnit.MILLISECONDS);
            if (message.getId() == -1) {
                continue;
            }
            long before = rows;
            for (CanalEntry.Entry entry : message.getEntries()) {
                if (entry.getEntryType() != CanalEntry.EntryType.ROWDATA) {
                    continue;
                }
                CanalEntry.RowChange change = CanalEntry.RowChange.parseFrom(entry.getStoreValue());
                for (CanalEntry.RowData row : change.getRowDatasList()) {
                    rows++;
                    for (CanalEntry.Column column : row.getAfterColumnsList()) {
                        columns++;
                        characters += lengthOf(column);
                    }
                }
            }
            connector.ack(message.getId());
            if (rows >= wanted) {
                System.out.println(String.format(Locale.ROOT,
                        "{\"columns\": %d, \"characters\": %d}", columns, characters));
            }
            clock.count(rows - before);
        }
    }

    /** Without the zeros that end a DECIMAL: Canal's server leaves all but one out of 10.00. */
    private static int lengthOf(CanalEntry.Column column) {
        String value = column.getValue();
        int length = value.length();
        while (column.getSqlType() == Types.DECIMAL && length > 0
                && value.charAt(length - 1) == '0') {
            length--;
        }
        return length;
    }
}
