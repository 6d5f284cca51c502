package gantry;

import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.util.Map;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * One plain connection to a name server or broker. It sends exactly the fields that it is given, so it can say what no stock
 * client would; frames are made and read by the client library's own classes.
 */
final class Wire implements AutoCloseable {
    final Socket socket = new Socket();
    private final DataInputStream in;
    private final OutputStream out;

    Wire(int port) throws IOException {
        socket.connect(new InetSocketAddress("127.0.0.1", port), 3_000);
        socket.setSoTimeout(20_000);
        socket.setTcpNoDelay(true);
        in = new DataInputStream(socket.getInputStream());
        out = socket.getOutputStream();
    }

    static RemotingCommand call(int port, int code, Map<String, String> fields) throws Exception {
        return call(port, code, fields, null);
    }

    static RemotingCommand call(int port, int code, Map<String, String> fields, byte[] body) throws Exception {
        try (Wire wire = new Wire(port)) {
            return wire.call(code, fields, body);
        }
    }

    RemotingCommand call(int code, Map<String, String> fields, byte[] body) throws Exception {
        RemotingCommand request = request(code, fields, body);
        write(frame(request));
        RemotingCommand answer = read();
        while (answer.getOpaque() != request.getOpaque() || !answer.isResponseType()) {
            answer = read();
        }
        return answer;
    }

    static RemotingCommand request(int code, Map<String, String> fields, byte[] body) {
        RemotingCommand request = RemotingCommand.createRequestCommand(code, null);
        request.setVersion(479);
        fields.forEach(request::addExtField);
        request.setBody(body);
        return request;
    }

    static byte[] frame(RemotingCommand command) {
        ByteBuffer encoded = command.encode();
        byte[] bytes = new byte[encoded.remaining()];
        encoded.get(bytes);
        return bytes;
    }

    void write(byte[] bytes) throws IOException {
        out.write(bytes);
        out.flush();
    }

    RemotingCommand read() throws Exception {
        byte[] frame = new byte[in.readInt()];
        in.readFully(frame);
        return RemotingCommand.decode(ByteBuffer.wrap(frame));
    }

    /** Whether the peer ended this connection; whatever it still says before that is read and dropped. */
    boolean ends() throws IOException {
        byte[] rest = new byte[64 << 10];
        try {
            while (in.read(rest) >= 0) {
                // Replies to what was well-formed.
            }
            return true;
        } catch (java.net.SocketTimeoutException stillOpen) {
            return false;
        } catch (EOFException | java.net.SocketException reset) {
            return true;
        }
    }

    @Override
    public void close() throws IOException {
        socket.close();
    }
}
