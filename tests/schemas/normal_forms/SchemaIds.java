import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Base64;
import org.apache.avro.Schema;

/**
 * Prints what Avro 1.4.0 makes of schemas.
 *
 * Each line of the input is the Base64 text of a schema in UTF-8; its line of the output is the
 * MD5 and the Base64 text of Schema.parse(text).toString(false), or "-" where Avro refuses it.
 */
public final class SchemaIds {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            byte[] given = Base64.getDecoder().decode(line);
            System.out.println(answer(new String(given, StandardCharsets.UTF_8)));
        }
    }

    private static String answer(String text) throws Exception {
        String normal;
        try {
            normal = Schema.parse(text).toString(false);
        } catch (RuntimeException refused) {
            return "- " + refused.getClass().getName();
        }
        byte[] bytes = normal.getBytes(StandardCharsets.UTF_8);
        StringBuilder id = new StringBuilder();
        for (byte one : MessageDigest.getInstance("MD5").digest(bytes)) {
            id.append(String.format("%02x", one));
        }
        return id + " " + Base64.getEncoder().encodeToString(bytes);
    }
}
