package gantry.bench;

import io.netty.bootstrap.Bootstrap;
import io.netty.channel.Channel;
import io.netty.channel.ChannelHandler;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOutboundHandlerAdapter;
import io.netty.channel.ChannelPromise;
import io.netty.util.concurrent.EventExecutorGroup;
import java.lang.reflect.Field;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.remoting.netty.NettyRemotingAbstract;
import org.apache.rocketmq.remoting.netty.NettyRemotingClient;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;

/**
 * Counts the requests of a producer whose last byte the kernel has taken, so that what its client lost and what a broker lost can be told apart. It
 * sits before the client's encoder, on the encoder's thread, so a request takes the way that it takes without.
 */
final class Reached {
    private static final Set<Integer> SENDS = Set.of(RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE);
    private static final int MANY_PERMITS = 1 << 24;
    private final LongAdder requests = new LongAdder();
    private final Object client;

    /** For a producer that has started and knows no broker yet. */
    Reached(DefaultMQProducer producer) throws ReflectiveOperationException {
        client = producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl().getRemotingClient();
        Bootstrap bootstrap = (Bootstrap) field(NettyRemotingClient.class, "bootstrap");
        EventExecutorGroup workers = (EventExecutorGroup) field(NettyRemotingClient.class, "defaultEventExecutorGroup");
        ChannelHandler stock = bootstrap.config().handler();
        bootstrap.handler(new ChannelInitializer<>() {
            @Override
            protected void initChannel(Channel channel) {
                channel.pipeline().addLast(stock).addLast(workers, new Counter());
            }
        });
    }

    private Object field(Class<?> owner, String name) throws ReflectiveOperationException {
        Field field = owner.getDeclaredField(name);
        field.setAccessible(true);
        return field.get(client);
    }

    long requests() {
        return requests.sum();
    }

    /**
     * Lets a client go whose only network thread waits for permits that nobody but this thread could return: without, not even its shutdown comes to an
     * end. What it had in hand is sent then.
     */
    void release() throws ReflectiveOperationException {
        for (String permits : List.of("semaphoreOneway", "semaphoreAsync")) {
            ((Semaphore) field(NettyRemotingAbstract.class, permits)).release(MANY_PERMITS);
        }
    }

    private final class Counter extends ChannelOutboundHandlerAdapter {
        @Override
        public void write(ChannelHandlerContext context, Object message, ChannelPromise promise) {
            ChannelPromise written = promise.unvoid();
            if (message instanceof RemotingCommand command && SENDS.contains(command.getCode())) {
                written.addListener(done -> {
                    if (done.isSuccess()) {
                        requests.increment();
                    }
                });
            }
            context.write(message, written);
        }
    }
}
