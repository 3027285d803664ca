import com.alibaba.otter.canal.parse.inbound.mysql.MysqlEventParser;
import com.alibaba.otter.canal.parse.index.AbstractLogPositionManager;
import com.alibaba.otter.canal.parse.support.AuthenticationInfo;
import com.alibaba.otter.canal.filter.aviater.AviaterRegexFilter;
import com.alibaba.otter.canal.protocol.CanalEntry;
import com.alibaba.otter.canal.protocol.position.EntryPosition;
import com.alibaba.otter.canal.protocol.position.LogPosition;
import com.alibaba.otter.canal.parse.exception.CanalParseException;
import com.alibaba.otter.canal.sink.AbstractCanalEventSink;
import java.net.InetSocketAddress;
import java.util.Base64;
import java.util.List;

/**
 * Prints the entries that Canal's parser makes of a log, each as a line of base64, up to an offset.
 *
 * <p>Arguments: HOST PORT USER PASSWORD FILE OFFSET FILTER END.
 */
public final class Entries {
    public static void main(String[] a) {
        long until = Long.parseLong(a[7]);
        MysqlEventParser parser = new MysqlEventParser();
        parser.setDestination("dump");
        parser.setConnectionCharset("UTF-8");
        parser.setSlaveId(4340);
        parser.setDetectingEnable(false);
        parser.setMasterInfo(new AuthenticationInfo(
                new InetSocketAddress(a[0], Integer.parseInt(a[1])), a[2], a[3], "mysql"));
        parser.setMasterPosition(new EntryPosition(a[4], Long.parseLong(a[5])));
        parser.setEventFilter(new AviaterRegexFilter(a[6]));
        parser.setEventSink(new AbstractCanalEventSink<List<CanalEntry.Entry>>() {
            public boolean sink(List<CanalEntry.Entry> entries, InetSocketAddress remote, String name) {
                for (CanalEntry.Entry entry : entries) {
                    if (entry.getEntryType() == CanalEntry.EntryType.HEARTBEAT) continue;
                    System.out.println(Base64.getEncoder().encodeToString(entry.toByteArray()));
                    CanalEntry.Header header = entry.getHeader();
                    if (header.getLogfileOffset() + header.getEventLength() >= until) {
                        System.out.flush();
                        Runtime.getRuntime().halt(0);
                    }
                }
                return true;
            }
        });
        parser.setLogPositionManager(new AbstractLogPositionManager() {
            public LogPosition getLatestIndexBy(String name) { return null; }
            public void persistLogPosition(String name, LogPosition position) throws CanalParseException { }
        });
        parser.start();
    }
}
