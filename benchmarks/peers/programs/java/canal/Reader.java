import com.alibaba.otter.canal.parse.exception.CanalParseException;
import com.alibaba.otter.canal.parse.inbound.mysql.MysqlEventParser;
import com.alibaba.otter.canal.parse.index.AbstractLogPositionManager;
import com.alibaba.otter.canal.parse.support.AuthenticationInfo;
import com.alibaba.otter.canal.filter.aviater.AviaterRegexFilter;
import com.alibaba.otter.canal.protocol.CanalEntry;
import com.alibaba.otter.canal.protocol.position.EntryPosition;
import com.alibaba.otter.canal.protocol.position.LogPosition;
import com.alibaba.otter.canal.sink.AbstractCanalEventSink;
import com.alibaba.otter.canal.sink.exception.CanalSinkException;
import java.net.InetSocketAddress;
import java.util.List;

/**
 * Reads one stretch of a binlog with Canal's parser, every row change parsed.
 *
 * <p>Arguments: embedded HOST PORT USER PASSWORD FILE OFFSET TABLE ROWS.
 */
public final class Reader {
    private static final class Sink extends AbstractCanalEventSink<List<CanalEntry.Entry>> {
        private final Clock clock;

        Sink(Clock clock) {
            this.clock = clock;
        }

        @Override
        public boolean sink(List<CanalEntry.Entry> entries, InetSocketAddress remote, String name) {
            for (CanalEntry.Entry entry : entries) {
                if (entry.getEntryType() != CanalEntry.EntryType.ROWDATA) {
                    continue;
                }
                try {
                    clock.count(CanalEntry.RowChange.parseFrom(entry.getStoreValue())
                            .getRowDatasCount());
                } catch (Exception error) {
                    throw new CanalSinkException(error);
                }
            }
            return true;
        }
    }

    private static final class Forgetful extends AbstractLogPositionManager {
        @Override
        public LogPosition getLatestIndexBy(String name) {
            return null;
        }

        @Override
        public void persistLogPosition(String name, LogPosition position) throws CanalParseException {
        }
    }

    public static void main(String[] a) {
        MysqlEventParser parser = new MysqlEventParser();
        parser.setDestination("bench");
        parser.setConnectionCharset("UTF-8");
        parser.setSlaveId(4340);
        parser.setDetectingEnable(false);
        parser.setMasterInfo(new AuthenticationInfo(
                new InetSocketAddress(a[1], Integer.parseInt(a[2])), a[3], a[4], "mysql"));
        parser.setMasterPosition(new EntryPosition(a[5], Long.parseLong(a[6])));
        parser.setEventFilter(new AviaterRegexFilter(a[7].replace(".", "\\.")));
        parser.setEventSink(new Sink(new Clock(Long.parseLong(a[8]))));
        parser.setLogPositionManager(new Forgetful());
        parser.start();
    }
}
