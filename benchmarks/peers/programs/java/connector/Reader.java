import com.github.shyiko.mysql.binlog.BinaryLogClient;
import com.github.shyiko.mysql.binlog.event.EventData;
import com.github.shyiko.mysql.binlog.event.WriteRowsEventData;

/**
 * Reads one stretch of a binlog with mysql-binlog-connector-java, every row decoded.
 *
 * <p>Arguments: decoded HOST PORT USER PASSWORD FILE OFFSET TABLE ROWS.
 */
public final class Reader {
    public static void main(String[] a) throws Exception {
        Clock clock = new Clock(Long.parseLong(a[8]));
        BinaryLogClient client = new BinaryLogClient(a[1], Integer.parseInt(a[2]), a[3], a[4]);
        client.setServerId(4320);
        client.setBinlogFilename(a[5]);
        client.setBinlogPosition(Long.parseLong(a[6]));
        client.registerEventListener(event -> {
            EventData data = event.getData();
            if (data instanceof WriteRowsEventData) {
                clock.count(((WriteRowsEventData) data).getRows().size());
            }
        });
        client.connect();
    }
}
