import com.alibaba.otter.canal.instance.manager.CanalInstanceWithManager;
import com.alibaba.otter.canal.instance.manager.model.Canal;
import com.alibaba.otter.canal.instance.manager.model.CanalParameter;
import com.alibaba.otter.canal.server.embedded.CanalServerWithEmbedded;
import com.alibaba.otter.canal.server.netty.CanalServerWithNetty;
import java.net.InetSocketAddress;
import java.util.Arrays;

/**
 * Serves one stretch of a binlog to clients of Canal, with the defaults of Canal's own
 * canal.properties where these matter for speed: events in memory, 16,384 entries of 1 KiB,
 * batches by size, parsing in several threads.
 *
 * <p>Arguments: HOST PORT USER PASSWORD FILE OFFSET TABLE LISTEN_PORT. It runs until it is killed.
 */
public final class Server {
    private static final String DESTINATION = "example";

    public static void main(String[] a) throws Exception {
        CanalParameter parameter = new CanalParameter();
        parameter.setMetaMode(CanalParameter.MetaMode.MEMORY);
        parameter.setStorageMode(CanalParameter.StorageMode.MEMORY);
        parameter.setStorageBatchMode(CanalParameter.BatchMode.MEMSIZE);
        parameter.setMemoryStorageBufferSize(16384);
        parameter.setMemoryStorageBufferMemUnit(1024);
        parameter.setMemoryStorageRawEntry(true);
        parameter.setSourcingType(CanalParameter.SourcingType.MYSQL);
        parameter.setIndexMode(CanalParameter.IndexMode.MEMORY);
        parameter.setHaMode(CanalParameter.HAMode.HEARTBEAT);
        parameter.setSlaveId(4390L);
        parameter.setConnectionCharset("UTF-8");
        parameter.setDetectingEnable(false);
        parameter.setTsdbEnable(false);
        parameter.setParallel(true);
        parameter.setDbAddresses(
                Arrays.asList(new InetSocketAddress(a[0], Integer.parseInt(a[1]))));
        parameter.setDbUsername(a[2]);
        parameter.setDbPassword(a[3]);
        parameter.setPositions(Arrays.asList(
                "{\"journalName\":\"" + a[4] + "\",\"position\":" + a[5] + "}"));
        Canal canal = new Canal();
        canal.setId(1L);
        canal.setName(DESTINATION);
        canal.setCanalParameter(parameter);
        String filter = a[6].replace(".", "\\.");
        CanalServerWithEmbedded embedded = CanalServerWithEmbedded.instance();
        embedded.setCanalInstanceGenerator(name -> new CanalInstanceWithManager(canal, filter));
        embedded.setMetricsPort(-1);
        CanalServerWithNetty netty = CanalServerWithNetty.instance();
        netty.setEmbeddedServer(embedded);
        netty.setIp("127.0.0.1");
        netty.setPort(Integer.parseInt(a[7]));
        embedded.start();
        embedded.start(DESTINATION);
        netty.start();
        Thread.currentThread().join();
    }
}
