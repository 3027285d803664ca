import java.util.List;
import java.util.Map;
import org.opensearch.common.settings.Settings;
import org.opensearch.env.Environment;
import org.opensearch.index.reindex.ReindexPlugin;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.transport.Netty4Plugin;

/** A node of OpenSearch: its folder, its port, and settings, each as NAME=VALUE. */
public class OpenSearch {
    static class Embedded extends Node {
        Embedded(Environment environment) {
            super(environment, List.of(Netty4Plugin.class, ReindexPlugin.class), false);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Settings.Builder settings = Settings.builder()
            .put("path.home", arguments[0])
            .put("http.port", arguments[1])
            .put("network.host", "127.0.0.1")
            .put("discovery.type", "single-node")
            .put("node.name", "test")
            .put("cluster.routing.allocation.disk.threshold_enabled", false);
        for (int at = 2; at < arguments.length; at++) {
            String[] parts = arguments[at].split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        new Embedded(
            InternalSettingsPreparer.prepareEnvironment(settings.build(), Map.of(), null, () -> "test")
        ).start();
        Thread.currentThread().join();
    }
}
