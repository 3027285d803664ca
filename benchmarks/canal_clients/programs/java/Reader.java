import com.alibaba.fastjson2.JSON;
import com.alibaba.otter.canal.client.CanalConnector;
import com.alibaba.otter.canal.client.CanalConnectors;
import com.alibaba.otter.canal.protocol.CanalEntry;
import com.alibaba.otter.canal.protocol.Message;
import java.net.InetSocketAddress;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.List;

/**
 * Consumes a destination with Canal's own client and prints what it acknowledges, a JSON array a
 * line: ["taken", batch, rows], ["rolledBack"], ["error", text].
 *
 * <p>Arguments: simple|cluster ADDRESS DESTINATION USER PASSWORD FILTER SIZE ROLLBACK_EVERY
 * OUTSTANDING. It runs until it is killed.
 */
public final class Reader {
    private final String[] arguments;
    private final int size;
    private final int rollbackEvery;
    private final int outstanding;
    private int received;

    private Reader(String[] arguments) {
        this.arguments = arguments;
        size = Integer.parseInt(arguments[6]);
        rollbackEvery = Integer.parseInt(arguments[7]);
        outstanding = Integer.parseInt(arguments[8]);
    }

    public static void main(String[] arguments) throws Exception {
        Reader reader = new Reader(arguments);
        CanalConnector connector = reader.open();
        while (true) {
            try {
                connector.connect();
                connector.subscribe(arguments[5]);
                reader.consume(connector);
            } catch (Exception error) {
                print("error", String.valueOf(error.getMessage()));
                try {
                    connector.disconnect();
                } catch (Exception gone) {
                    print("error", String.valueOf(gone.getMessage()));
                }
                Thread.sleep(200);
            }
        }
    }

    private CanalConnector open() {
        String address = arguments[1];
        if (arguments[0].equals("cluster")) {
            return CanalConnectors.newClusterConnector(
                    address, arguments[2], arguments[3], arguments[4]);
        }
        int colon = address.lastIndexOf(':');
        InetSocketAddress socket = new InetSocketAddress(
                address.substring(0, colon), Integer.parseInt(address.substring(colon + 1)));
        return CanalConnectors.newSingleConnector(
                socket, arguments[2], arguments[3], arguments[4]);
    }

    private void consume(CanalConnector connector) throws Exception {
        Deque<Message> messages = new ArrayDeque<>();
        while (true) {
            Message message = connector.getWithoutAck(size, 50L,
                    java.util.concurrent.TimeUnit.MILLISECONDS);
            if (message.getId() != -1) {
                messages.add(message);
                received++;
                if (rollbackEvery > 0 && received % rollbackEvery == 0) {
                    connector.rollback();
                    messages.clear();
                    print("rolledBack");
                    continue;
                }
            }
            while (messages.size() >= (message.getId() == -1 ? 1 : outstanding)) {
                Message oldest = messages.remove();
                // Before: what a killed client has not done must come again.
                print("taken", oldest.getId(), rowsOf(oldest));
                connector.ack(oldest.getId());
            }
        }
    }

    private static List<Object> rowsOf(Message message) throws Exception {
        List<Object> found = new ArrayList<>();
        for (CanalEntry.Entry entry : message.getEntries()) {
            if (entry.getEntryType() != CanalEntry.EntryType.ROWDATA) {
                continue;
            }
            CanalEntry.RowChange change = CanalEntry.RowChange.parseFrom(entry.getStoreValue());
            String table = entry.getHeader().getSchemaName() + "." + entry.getHeader().getTableName();
            if (change.getIsDdl()) {
                found.add(Arrays.asList("DDL", table, change.getSql()));
            } else if (!change.getSql().isEmpty()) {
                found.add(Arrays.asList("SQL", table, change.getSql()));
            }
            for (CanalEntry.RowData row : change.getRowDatasList()) {
                boolean isDelete = change.getEventType() == CanalEntry.EventType.DELETE;
                List<Object> columns = new ArrayList<>();
                for (CanalEntry.Column column
                        : isDelete ? row.getBeforeColumnsList() : row.getAfterColumnsList()) {
                    columns.add(Arrays.asList(column.getName(),
                            column.getIsNull() ? null : column.getValue(), column.getSqlType()));
                }
                found.add(Arrays.asList(change.getEventType().name(), table, columns));
            }
        }
        return found;
    }

    private static void print(Object... parts) {
        System.out.println(JSON.toJSONString(parts,
                com.alibaba.fastjson2.JSONWriter.Feature.WriteNulls));
        System.out.flush();
    }
}
