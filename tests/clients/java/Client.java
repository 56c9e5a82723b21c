import java.io.ByteArrayInputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import org.apache.arrow.flight.CallOption;
import org.apache.arrow.flight.FlightClient;
import org.apache.arrow.flight.FlightDescriptor;
import org.apache.arrow.flight.FlightEndpoint;
import org.apache.arrow.flight.FlightRuntimeException;
import org.apache.arrow.flight.FlightStream;
import org.apache.arrow.flight.Location;
import org.apache.arrow.flight.Ticket;
import org.apache.arrow.flight.auth2.BearerCredentialWriter;
import org.apache.arrow.flight.grpc.CredentialCallOption;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.LargeVarBinaryVector;

/**
 * Comes in at a server by every way that Java's Flight client has, and says what came of each: a line of the way's name,
 * a tab, and "ok ROWS BYTES", or a status and its message. Arguments: port, CA, certificate, key. The token is in
 * CLIENT_TOKEN.
 */
public final class Client {
  private static final String SEEN = "{\"dataset\": \"seen\"%s}";
  private static final BufferAllocator MEMORY = new RootAllocator();
  private static int port;
  private static byte[] root, certificate, key;

  private interface Way {
    long[] go(FlightClient client) throws Exception;
  }

  public static void main(String[] args) throws Exception {
    port = Integer.parseInt(args[0]);
    root = Files.readAllBytes(Path.of(args[1]));
    certificate = Files.readAllBytes(Path.of(args[2]));
    key = Files.readAllBytes(Path.of(args[3]));
    String token = System.getenv("CLIENT_TOKEN");
    CallOption bearer = bearer(token);

    report("bearer", c -> endpoints(c, bearer));
    report("basic", c -> endpoints(c, c.authenticateBasicToken("alice", token).orElseThrow()));
    report("basic, any user", c -> endpoints(c, c.authenticateBasicToken("token", token).orElseThrow()));
    report("older handshake", c -> {
      c.authenticateBasic("alice", token);
      return endpoints(c);
    });
    report("by hand", c -> get(c, SEEN.formatted(""), bearer));
    certified("certificate", c -> endpoints(c));

    report("no token", c -> endpoints(c));
    report("wrong token", c -> endpoints(c, bearer(token.substring(1))));
    report("wrong password", c -> endpoints(c, c.authenticateBasicToken("alice", "wrong").orElseThrow()));
    report("another's password", c -> endpoints(c, c.authenticateBasicToken("bob", token).orElseThrow()));
    report("older handshake, wrong", c -> {
      c.authenticateBasic("alice", "wrong");
      return endpoints(c);
    });
    certified("wrong token beside a certificate", c -> endpoints(c, bearer("wrong")));
    try (FlightClient plain = FlightClient.builder(MEMORY, Location.forGrpcInsecure("127.0.0.1", port)).build()) {
      report("in plain", plain, c -> endpoints(c, bearer));
    }

    Map<String, String[]> twins = Map.of(
        "dataset", new String[] {"{\"dataset\": \"zzz1\"}", "{\"dataset\": \"zzz2\"}"},
        "row", new String[] {SEEN.formatted(", \"where\": \"position == 7\""), SEEN.formatted(", \"where\": \"position == 70\"")},
        "listed row", new String[] {
          SEEN.formatted(", \"selection\": {\"positions\": [7]}"), SEEN.formatted(", \"selection\": {\"positions\": [70]}")
        },
        "column", new String[] {SEEN.formatted(", \"columns\": [\"name\"]"), SEEN.formatted(", \"columns\": [\"nome\"]")});
    for (var twin : twins.entrySet()) {
      report("hidden " + twin.getKey(), c -> get(c, twin.getValue()[0], bearer));
      report("absent " + twin.getKey(), c -> get(c, twin.getValue()[1], bearer));
    }
  }

  private static CallOption bearer(String token) {
    return new CredentialCallOption(new BearerCredentialWriter(token));
  }

  private static FlightClient.Builder encrypted() {
    return FlightClient.builder(MEMORY, Location.forGrpcTls("127.0.0.1", port))
        .trustedCertificates(new ByteArrayInputStream(root));
  }

  private static void report(String name, Way way) throws Exception {
    try (FlightClient client = encrypted().build()) {
      report(name, client, way);
    }
  }

  private static void certified(String name, Way way) throws Exception {
    var pair = encrypted().clientCertificate(new ByteArrayInputStream(certificate), new ByteArrayInputStream(key));
    try (FlightClient client = pair.build()) {
      report(name, client, way);
    }
  }

  private static void report(String name, FlightClient client, Way way) throws Exception {
    String said;
    try {
      long[] got = way.go(client);
      said = "ok " + got[0] + " " + got[1];
    } catch (FlightRuntimeException e) {
      said = e.status().code() + " " + e.status().description();
    }
    System.out.println(name + "\t" + said.replace("\n", " "));
  }

  /** Reads what the endpoints of a FlightInfo bring. */
  private static long[] endpoints(FlightClient client, CallOption... options) throws Exception {
    long[] sum = {0, 0};
    for (FlightEndpoint e : client.getInfo(FlightDescriptor.path("seen", "train"), options).getEndpoints()) {
      long[] got = read(client, e.getTicket(), options);
      sum[0] += got[0];
      sum[1] += got[1];
    }
    return sum;
  }

  private static long[] get(FlightClient client, String ticket, CallOption... options) throws Exception {
    return read(client, new Ticket(ticket.getBytes(StandardCharsets.UTF_8)), options);
  }

  private static long[] read(FlightClient client, Ticket ticket, CallOption... options) throws Exception {
    long rows = 0, bytes = 0;
    try (FlightStream stream = client.getStream(ticket, options)) {
      while (stream.next()) {
        rows += stream.getRoot().getRowCount();
        if (stream.getRoot().getVector("image") instanceof LargeVarBinaryVector images) {
          for (int i = 0; i < images.getValueCount(); i++) {
            bytes += images.get(i).length;
          }
        }
      }
    }
    return new long[] {rows, bytes};
  }
}
