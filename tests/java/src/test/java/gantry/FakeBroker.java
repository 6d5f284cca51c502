package gantry;

import java.io.DataInputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.ByteBuffer;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/** What a controller sees of a broker: heartbeats on a connection of their own, and a port that takes what the controller pushes. */
final class FakeBroker implements AutoCloseable {
    final String name;
    final long id;
    private final Server controller;
    private final int port;
    private final BlockingQueue<RemotingCommand> pushed = new LinkedBlockingQueue<>();
    private ServerSocket listener;
    private Thread accepting;
    private volatile boolean isDying;
    private Wire connection;

    FakeBroker(Server controller, String name, long id) {
        this.controller = controller;
        this.name = name;
        this.id = id;
        port = Server.freePort();
    }

    String address() {
        return "127.0.0.1:" + port;
    }

    /** What 1013 keeps, and later compares. */
    String checkCode() {
        return address() + ";1700000000000";
    }

    /** Listens, and says so to the controller; alive until {@link #die}, since its heartbeats are good for a long time. */
    RemotingCommand live(int epoch, long maxOffset) throws Exception {
        return ask(904, heartbeat(epoch, maxOffset));
    }

    /** By the connection of its heartbeats, as brokers do. */
    RemotingCommand ask(int code, Map<String, String> fields) throws Exception {
        if (listener == null) {
            listener = new ServerSocket(port, 50, InetAddress.getLoopbackAddress());
            accepting = new Thread(this::accept);
            accepting.setDaemon(true);
            accepting.start();
        }
        if (connection == null) {
            connection = new Wire(controller.controllerPort);
        }
        return connection.call(code, fields, null);
    }

    /** Its connection is gone, as when the controller was away; it still listens. */
    void disconnect() throws IOException {
        connection.close();
        connection = null;
    }

    Map<String, String> heartbeat(int epoch, long maxOffset) {
        var fields = new LinkedHashMap<String, String>();
        fields.put("clusterName", Server.CLUSTER);
        fields.put("brokerName", name);
        fields.put("brokerAddr", address());
        fields.put("brokerId", String.valueOf(id));
        fields.put("epoch", String.valueOf(epoch));
        fields.put("maxOffset", String.valueOf(maxOffset));
        fields.put("confirmOffset", String.valueOf(maxOffset));
        fields.put("heartbeatTimeoutMills", "600000");
        fields.put("electionPriority", String.valueOf(Integer.MAX_VALUE));
        return fields;
    }

    /** As a process that is being killed: its connection ends first, and its port still takes one connection, which nobody serves. */
    void dieByAndBy() throws IOException {
        isDying = true;
        disconnect();
    }

    /** As after kill -9: its connection ends, and nothing listens any more. */
    void die() throws Exception {
        if (listener != null) {
            listener.close();
            // As long as it waits in the system call, the port takes connections.
            accepting.join();
            listener = null;
        }
        if (connection != null) {
            disconnect();
        }
    }

    /** What the controller pushed next. */
    RemotingCommand pushed() throws InterruptedException {
        var command = pushed.poll(10, TimeUnit.SECONDS);
        if (command == null) {
            throw new AssertionError("nothing is pushed to broker " + id + " of " + name);
        }
        return command;
    }

    private void accept() {
        var from = listener;
        while (true) {
            try {
                var socket = from.accept();
                if (isDying) {
                    from.close();
                    socket.close();
                    return;
                }
                var reading = new Thread(() -> {
                    try (socket; var in = new DataInputStream(socket.getInputStream())) {
                        while (true) {
                            byte[] frame = new byte[in.readInt()];
                            in.readFully(frame);
                            pushed.add(RemotingCommand.decode(ByteBuffer.wrap(frame)));
                        }
                    } catch (Exception ended) {
                        // The controller has closed it.
                    }
                });
                reading.setDaemon(true);
                reading.start();
            } catch (IOException closed) {
                return;
            }
        }
    }

    @Override
    public void close() throws Exception {
        die();
    }
}
