import com.fasterxml.jackson.databind.ObjectMapper;
import com.meituan.ptubes.common.log.LoggerFactory;
import com.meituan.ptubes.sdk.AckType;
import com.meituan.ptubes.sdk.IRdsCdcEventListener;
import com.meituan.ptubes.sdk.PtubesConnector;
import com.meituan.ptubes.sdk.RdsCdcEventStatus;
import com.meituan.ptubes.sdk.checkpoint.BuffaloCheckpoint.CheckpointMode;
import com.meituan.ptubes.sdk.checkpoint.MysqlCheckpoint;
import com.meituan.ptubes.sdk.config.PtubesSdkConsumerConfig;
import com.meituan.ptubes.sdk.config.PtubesSdkSubscriptionConfig;
import com.meituan.ptubes.sdk.config.notification.DefaultConfChangedRecipient;
import com.meituan.ptubes.sdk.config.notification.IConfigChangeNotifier;
import com.meituan.ptubes.sdk.model.ReaderInfo;
import com.meituan.ptubes.sdk.model.ReaderServerInfo;
import com.meituan.ptubes.sdk.model.wrapper.AckEventWrapper;
import com.meituan.ptubes.sdk.protocol.RdsPacket;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.commons.lang3.tuple.Pair;

/**
 * Prints what the stock client hands over, a JSON array a line: [status, batch, events], where
 * status is what the client is answered, and batch the id that is acknowledged, or null.
 *
 * <p>Arguments are NAME=VALUE: zookeeper, readers, task, reader, tables, ddl, commits, logs, mode
 * (of the first checkpoint), partitions; failures: how often each batch fails before it is taken;
 * skipped: the note of rows that are skipped; ack: batches are acknowledged, the first of each
 * partition only when it comes a second time; sleepMs: how long the first batch takes.
 *
 * <p>Lines of standard input change the subscription: "partitions N", or "reset", which goes back
 * to the earliest place with a newer version.
 */
public class Consume {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<String, String> GIVEN = new HashMap<>();

    public static void main(String[] args) throws Exception {
        for (String one : args) {
            String[] parts = one.split("=", 2);
            GIVEN.put(parts[0], parts[1]);
        }
        System.setProperty(LoggerFactory.DEFAULT_LOG_DIR_PROPERTY, GIVEN.get("logs"));
        System.setProperty(LoggerFactory.DEFAULT_LOG_TYPE_PROPERTY, "log4j2");
        Settings settings = new Settings();
        Printer printer = new Printer();
        PtubesConnector<MysqlCheckpoint> connector =
            PtubesConnector.newMySQLConnection(GIVEN.get("task"), settings, printer);
        printer.connector = connector;
        Thread commands = new Thread(settings::listen);
        commands.setDaemon(true);
        commands.start();
        connector.startup();
    }

    private static int number(String name) {
        return Integer.parseInt(GIVEN.get(name));
    }

    static class Printer implements IRdsCdcEventListener {
        private final ScheduledExecutorService later = Executors.newSingleThreadScheduledExecutor();
        private final Map<String, Integer> calls = new HashMap<>();
        private boolean hasSlept;
        PtubesConnector<MysqlCheckpoint> connector;

        @Override
        public RdsCdcEventStatus onEvents(List<RdsPacket.RdsEvent> events) {
            sleepOnce();
            RdsPacket.RdsEvent first = events.get(0);
            RdsCdcEventStatus status = RdsCdcEventStatus.SUCCESS;
            if (noteOf(first).equals(GIVEN.get("skipped"))) {
                status = RdsCdcEventStatus.SKIP;
            } else if (number("failures") > 0 && callsOf(idOf(first)) <= number("failures")) {
                status = RdsCdcEventStatus.FAILURE;
            }
            print(status.name(), null, events);
            return status;
        }

        @Override
        public RdsCdcEventStatus onEventsWithAck(AckEventWrapper batch) {
            String id = batch.getBatchUuid();
            boolean isLate = id.endsWith("-0") && callsOf(id) == 1;
            print(isLate ? "UNACKED" : "SUCCESS", id, batch.getEvents());
            if (!isLate) {
                later.schedule(() -> connector.ack(id), 20, TimeUnit.MILLISECONDS);
            }
            return RdsCdcEventStatus.SUCCESS;
        }

        private synchronized int callsOf(String id) {
            return calls.merge(id, 1, Integer::sum);
        }

        private synchronized void sleepOnce() {
            if (!hasSlept && number("sleepMs") > 0) {
                hasSlept = true;
                try {
                    Thread.sleep(number("sleepMs"));
                } catch (InterruptedException error) {
                    Thread.currentThread().interrupt();
                }
            }
        }

        private static String noteOf(RdsPacket.RdsEvent event) {
            RdsPacket.Column note = event.getRowData().getAfterColumnsOrDefault("note", null);
            return note == null ? "" : note.getValue();
        }

        private static String idOf(RdsPacket.RdsEvent event) {
            RdsPacket.Checkpoint place = event.getHeader().getCheckpoint();
            return place.getBinlogFile() + ":" + place.getBinlogOffset() + ":"
                + place.getEventIndex();
        }

        private static void print(String status, String batch, List<RdsPacket.RdsEvent> events) {
            List<Object> shown = new ArrayList<>();
            for (RdsPacket.RdsEvent event : events) {
                RdsPacket.RdsHeader header = event.getHeader();
                RdsPacket.Checkpoint place = header.getCheckpoint();
                shown.add(Arrays.asList(event.getEventType().name(), event.getIsDdl(),
                    header.getTableName(), shown(event.getRowData().getBeforeColumnsMap()),
                    shown(event.getRowData().getAfterColumnsMap()), event.getSql(),
                    Arrays.asList(place.getServerId(), place.getBinlogFile(),
                        place.getBinlogOffset(), place.getEventIndex(), place.getTimestamp())));
            }
            try {
                String line = JSON.writeValueAsString(Arrays.asList(status, batch, shown));
                synchronized (System.out) {
                    System.out.println(line);
                    System.out.flush();
                }
            } catch (Exception error) {
                error.printStackTrace();
            }
        }

        private static Map<String, Object> shown(Map<String, RdsPacket.Column> columns) {
            Map<String, Object> found = new TreeMap<>();
            for (RdsPacket.Column column : columns.values()) {
                Map<String, String> props = new TreeMap<>();
                for (RdsPacket.Pair pair : column.getPropsList()) {
                    props.put(pair.getKey(), pair.getValue());
                }
                found.put(column.getName(), Arrays.asList(
                    column.getIsNull() ? null : column.getValue(), column.getSqlType(), props));
            }
            return found;
        }
    }

    static class Settings implements IConfigChangeNotifier {
        private DefaultConfChangedRecipient recipient;

        private PtubesSdkSubscriptionConfig subscription() throws Exception {
            PtubesSdkSubscriptionConfig wanted = new PtubesSdkSubscriptionConfig(
                GIVEN.get("reader"), GIVEN.get("task"), GIVEN.get("zookeeper"),
                GIVEN.get("tables"));
            wanted.setNeedDDL(Boolean.parseBoolean(GIVEN.get("ddl")));
            wanted.setNeedEndTransaction(Boolean.parseBoolean(GIVEN.get("commits")));
            wanted.setPartitionNum(number("partitions"));
            wanted.setReaderAppkey("");
            MysqlCheckpoint place = new MysqlCheckpoint(-1);
            place.setVersionTs(Long.parseLong(GIVEN.get("version")));
            place.setCheckpointMode(CheckpointMode.valueOf(GIVEN.get("mode")));
            wanted.setBuffaloCheckpoint(place);
            return wanted;
        }

        private PtubesSdkConsumerConfig consumer() throws Exception {
            PtubesSdkConsumerConfig consumer = new PtubesSdkConsumerConfig();
            consumer.setCheckpointSyncIntervalMs(500);
            if (Boolean.parseBoolean(GIVEN.get("ack"))) {
                consumer.setAckType(AckType.ACK);
            }
            return consumer;
        }

        void listen() {
            try (BufferedReader lines = new BufferedReader(new InputStreamReader(System.in))) {
                for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                    PtubesSdkSubscriptionConfig before = subscription();
                    String[] words = line.split(" ");
                    if (words[0].equals("partitions")) {
                        GIVEN.put("partitions", words[1]);
                    } else {
                        GIVEN.put("mode", "EARLIEST");
                        GIVEN.put("version", String.valueOf(System.currentTimeMillis()));
                    }
                    recipient.onSubscriptionConfigChanged(Pair.of(before, subscription()));
                }
            } catch (Exception error) {
                error.printStackTrace();
            }
        }

        @Override
        @SuppressWarnings("unchecked")
        public <T> T getConfig(String name, Class<T> kind) {
            try {
                if (kind.isAssignableFrom(PtubesSdkConsumerConfig.class)) {
                    return (T) consumer();
                }
                if (kind.isAssignableFrom(PtubesSdkSubscriptionConfig.class)) {
                    return (T) subscription();
                }
                List<ReaderServerInfo> readers = new ArrayList<>();
                for (String one : GIVEN.get("readers").split(",")) {
                    String[] parts = one.split(":");
                    readers.add(new ReaderServerInfo(parts[0], Integer.parseInt(parts[1])));
                }
                return (T) new ReaderInfo(readers);
            } catch (Exception error) {
                error.printStackTrace();
                return null;
            }
        }

        @Override
        public void registerAllListener() {}

        @Override
        public void deRegisterAllListener() {}

        @Override
        public void setConfChangedRecipient(DefaultConfChangedRecipient recipient) {
            this.recipient = recipient;
        }

        @Override
        public void shutdown() {}
    }
}
