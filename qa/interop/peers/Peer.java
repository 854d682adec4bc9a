// A peer of the interoperability run in Java, on JeroMQ 0.4 or later: see qa/interop/__init__.py for its commands.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import org.zeromq.ZContext;
import org.zeromq.ZMQ;

public class Peer {
    static ZMQ.Socket socket(ZContext context, int type, String[] keys) {
        ZMQ.Socket socket = context.createSocket(type);
        socket.setLinger(0);
        socket.setSndHWM(0);
        socket.setRcvHWM(0);
        if (keys.length > 0) {
            socket.setCurvePublicKey(ZMQ.Curve.z85Decode(keys[0]));
            socket.setCurveSecretKey(ZMQ.Curve.z85Decode(keys[1]));
            if (keys.length > 2) {
                socket.setCurveServerKey(ZMQ.Curve.z85Decode(keys[2]));
            } else {
                socket.setCurveServer(true);
            }
        }
        return socket;
    }

    static String[] rest(String[] words, int first) {
        return java.util.Arrays.copyOfRange(words, first, words.length);
    }

    /** Ends the process when the parent closes standard input. */
    static void endWithParent() {
        Thread thread = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                }
            } catch (java.io.IOException fault) {
                // the parent is gone
            }
            Runtime.getRuntime().halt(0);
        });
        thread.setDaemon(true);
        thread.start();
    }

    static void client(String endpoint, String type, int heartbeat, String[] keys) throws Exception {
        try (ZContext context = new ZContext()) {
            ZMQ.Socket socket = socket(context, type.equals("REQ") ? ZMQ.REQ : ZMQ.DEALER, keys);
            if (heartbeat > 0) {
                // since JeroMQ 0.5
                ZMQ.Socket.class.getMethod("setHeartbeatIvl", int.class).invoke(socket, heartbeat);
            }
            socket.connect(endpoint);
            System.out.println("ready");
            BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String[] paths = line.split(" ");
                socket.send(Files.readAllBytes(Path.of(paths[0])));
                Files.write(Path.of(paths[1]), socket.recv());
                System.out.println("done");
            }
        }
    }

    static void echo(String endpoint, String[] keys) {
        endWithParent();
        try (ZContext context = new ZContext()) {
            ZMQ.Socket router = socket(context, ZMQ.ROUTER, keys);
            router.bind(endpoint);
            System.out.println("ready");
            while (true) {
                boolean more = true;
                while (more) { // routing id, an empty part of a REQ, the message
                    byte[] part = router.recv();
                    more = router.hasReceiveMore();
                    router.send(part, more ? ZMQ.SNDMORE : 0);
                }
            }
        }
    }

    static void relay(String endpoint, String server, String[] keys) {
        endWithParent();
        try (ZContext context = new ZContext()) {
            ZMQ.Socket router = socket(context, ZMQ.ROUTER, keys);
            ZMQ.Socket dealer = socket(context, ZMQ.DEALER, new String[0]);
            router.bind(endpoint);
            dealer.connect(server);
            System.out.println("ready");
            ZMQ.Poller poller = context.createPoller(2);
            poller.register(router, ZMQ.Poller.POLLIN);
            poller.register(dealer, ZMQ.Poller.POLLIN);
            byte[] client = null;
            while (true) {
                poller.poll();
                if (poller.pollin(0)) {
                    client = router.recv();
                    dealer.send(router.recv());
                }
                if (poller.pollin(1)) {
                    router.send(client, ZMQ.SNDMORE);
                    router.send(dealer.recv());
                }
            }
        }
    }

    public static void main(String[] words) throws Exception {
        switch (words[0]) {
            case "client" -> client(words[1], words[2], Integer.parseInt(words[3]), rest(words, 4));
            case "echo" -> echo(words[1], rest(words, 2));
            case "relay" -> relay(words[1], words[2], rest(words, 3));
            default -> throw new IllegalArgumentException(words[0]);
        }
    }
}
