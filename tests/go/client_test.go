// Package tests drives the real binary with the stock Go remoting client.
package tests

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

var names = os.Getenv("GANTRY_NAMESRV")
var broker = os.Getenv("GANTRY_BROKER")

func TestMain(m *testing.M) {
	rlog.SetLogLevel("error")
	if names == "" || broker == "" {
		fmt.Fprintln(os.Stderr, "GANTRY_NAMESRV and GANTRY_BROKER say where the server is (host:port)")
		os.Exit(2)
	}
	os.Exit(m.Run())
}

func unique(t *testing.T, what string) string {
	return fmt.Sprintf("%s_%s_%d", what, t.Name(), time.Now().UnixNano())
}

func makeTopic(t *testing.T, queues int) string {
	t.Helper()
	topic := unique(t, "go")
	tools, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver([]string{names})))
	check(t, err)
	defer tools.Close()
	check(t, tools.CreateTopic(context.Background(), admin.WithTopicCreate(topic), admin.WithBrokerAddrCreate(broker),
		admin.WithReadQueueNums(queues), admin.WithWriteQueueNums(queues)))
	// Until the name server knows it, a producer would take the default topic's number of queues for it.
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		found, err := tools.FetchPublishMessageQueues(context.Background(), topic)
		if err == nil && len(found) == queues {
			return topic
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d queues, not %d, and %v", len(found), queues, err)
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func startProducer(t *testing.T, options ...producer.Option) rocketmq.Producer {
	t.Helper()
	options = append([]producer.Option{producer.WithNsResolver(primitive.NewPassthroughResolver([]string{names})),
		producer.WithGroupName(unique(t, "producers")), producer.WithInstanceName(unique(t, "p")),
		producer.WithSendMsgTimeout(20 * time.Second)}, options...)
	p, err := rocketmq.NewProducer(options...)
	check(t, err)
	check(t, p.Start())
	t.Cleanup(func() { _ = p.Shutdown() })
	return p
}

// inbox keeps what a consumer was given.
type inbox struct {
	sync.Mutex
	bodies []string
	byKey  map[int][]int64
}

func (box *inbox) take(messages []*primitive.MessageExt) {
	box.Lock()
	defer box.Unlock()
	for _, message := range messages {
		box.bodies = append(box.bodies, string(message.Body))
		if box.byKey == nil {
			box.byKey = map[int][]int64{}
		}
		box.byKey[message.Queue.QueueId] = append(box.byKey[message.Queue.QueueId], message.QueueOffset)
	}
}

func (box *inbox) sorted() []string {
	box.Lock()
	defer box.Unlock()
	all := append([]string{}, box.bodies...)
	sort.Strings(all)
	return all
}

func (box *inbox) await(t *testing.T, want []string) {
	t.Helper()
	sort.Strings(want)
	deadline := time.Now().Add(60 * time.Second)
	for time.Now().Before(deadline) {
		if strings.Join(box.sorted(), "\n") == strings.Join(want, "\n") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("wanted %d messages, got %d: %v", len(want), len(box.sorted()), box.sorted())
}

func startConsumer(t *testing.T, topic string, tags string, box *inbox, options ...consumer.Option) rocketmq.PushConsumer {
	t.Helper()
	options = append([]consumer.Option{consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{names})),
		consumer.WithGroupName(unique(t, "consumers")), consumer.WithInstance(unique(t, "c")),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset)}, options...)
	c, err := rocketmq.NewPushConsumer(options...)
	check(t, err)
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: tags}
	check(t, c.Subscribe(topic, selector, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		box.take(messages)
		return consumer.ConsumeSuccess, nil
	}))
	check(t, c.Start())
	t.Cleanup(func() { _ = c.Shutdown() })
	return c
}

func TestEverySendModeArrives(t *testing.T) {
	t.Parallel()
	topic := makeTopic(t, 1)
	p := startProducer(t)
	var want []string
	for i := 0; i < 20; i++ {
		body := "sync " + strconv.Itoa(i)
		message := primitive.NewMessage(topic, []byte(body)).WithTag("tag").WithKeys([]string{"k" + strconv.Itoa(i)})
		message.WithProperty("имя", "值")
		result, err := p.SendSync(context.Background(), message)
		check(t, err)
		if result.Status != primitive.SendOK || result.QueueOffset != int64(i) {
			t.Fatalf("send %d: %v", i, result)
		}
		want = append(want, body)
	}
	var answered sync.WaitGroup
	for i := 0; i < 20; i++ {
		body := "async " + strconv.Itoa(i)
		answered.Add(1)
		check(t, p.SendAsync(context.Background(), func(_ context.Context, _ *primitive.SendResult, err error) {
			if err != nil {
				t.Error(err)
			}
			answered.Done()
		}, primitive.NewMessage(topic, []byte(body)).WithTag("tag")))
		want = append(want, body)
	}
	answered.Wait()
	for i := 0; i < 20; i++ {
		body := "oneway " + strconv.Itoa(i)
		check(t, p.SendOneWay(context.Background(), primitive.NewMessage(topic, []byte(body)).WithTag("tag")))
		want = append(want, body)
	}
	var batch []*primitive.Message
	for i := 0; i < 20; i++ {
		body := "batch " + strconv.Itoa(i)
		batch = append(batch, primitive.NewMessage(topic, []byte(body)).WithTag("tag"))
		want = append(want, body)
	}
	_, err := p.SendSync(context.Background(), batch...)
	check(t, err)
	large := strings.Repeat("compress me ", 20_000)
	_, err = p.SendSync(context.Background(), primitive.NewMessage(topic, []byte(large)).WithTag("tag"))
	check(t, err)
	want = append(want, large)

	box := &inbox{}
	startConsumer(t, topic, "tag", box)
	box.await(t, want)
}

func TestTagsAreFiltered(t *testing.T) {
	t.Parallel()
	topic := makeTopic(t, 2)
	p := startProducer(t)
	box := &inbox{}
	startConsumer(t, topic, "red || blue", box)
	var want []string
	for i := 0; i < 30; i++ {
		tag := []string{"red", "green", "blue"}[i%3]
		body := tag + strconv.Itoa(i)
		_, err := p.SendSync(context.Background(), primitive.NewMessage(topic, []byte(body)).WithTag(tag))
		check(t, err)
		if tag != "green" {
			want = append(want, body)
		}
	}
	box.await(t, want)
}

func TestOrderlyConsumersSeeQueuesInOrder(t *testing.T) {
	t.Parallel()
	topic := makeTopic(t, 4)
	p := startProducer(t, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	var want []string
	for i := 0; i < 100; i++ {
		body := strconv.Itoa(i)
		message := primitive.NewMessage(topic, []byte(body)).WithShardingKey(strconv.Itoa(i % 7))
		_, err := p.SendSync(context.Background(), message)
		check(t, err)
		want = append(want, body)
	}
	box := &inbox{}
	startConsumer(t, topic, "*", box, consumer.WithConsumerOrder(true))
	box.await(t, want)
	for queue, offsets := range box.byKey {
		for i, offset := range offsets {
			if offset != int64(i) {
				t.Fatalf("queue %d was seen as %v", queue, offsets)
			}
		}
	}
}

func TestBroadcastReachesEveryMember(t *testing.T) {
	t.Parallel()
	topic := makeTopic(t, 2)
	group := unique(t, "all")
	// A broadcast consumer keeps its offsets in its home folder; from the first message is where a new one begins.
	boxes := []*inbox{{}, {}}
	for _, box := range boxes {
		startConsumer(t, topic, "*", box, consumer.WithGroupName(group), consumer.WithConsumerModel(consumer.BroadCasting))
	}
	p := startProducer(t)
	var want []string
	for i := 0; i < 20; i++ {
		_, err := p.SendSync(context.Background(), primitive.NewMessage(topic, []byte(strconv.Itoa(i))))
		check(t, err)
		want = append(want, strconv.Itoa(i))
	}
	for _, box := range boxes {
		box.await(t, append([]string{}, want...))
	}
}

func TestAFailedMessageComesAgain(t *testing.T) {
	t.Parallel()
	topic := makeTopic(t, 1)
	p := startProducer(t)
	_, err := p.SendSync(context.Background(), primitive.NewMessage(topic, []byte("again")))
	check(t, err)
	c, err := rocketmq.NewPushConsumer(consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{names})),
		consumer.WithGroupName(unique(t, "retry")), consumer.WithInstance(unique(t, "c")),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	check(t, err)
	times := make(chan int32, 16)
	check(t, c.Subscribe(topic, consumer.MessageSelector{}, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		times <- messages[0].ReconsumeTimes
		if messages[0].ReconsumeTimes < 2 {
			return consumer.ConsumeRetryLater, nil
		}
		return consumer.ConsumeSuccess, nil
	}))
	check(t, c.Start())
	t.Cleanup(func() { _ = c.Shutdown() })
	for want := int32(0); want <= 2; want++ {
		select {
		case got := <-times:
			if got != want {
				t.Fatalf("try %d came as %d", want, got)
			}
		case <-time.After(60 * time.Second):
			t.Fatalf("try %d never came", want)
		}
	}
}
