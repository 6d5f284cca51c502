use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_and_messages_are_there_after_a_restart() {
    let running = start(Setup::default()).await;
    for n in 0..10 {
        running.put("Orders", 0, "", &n.to_string()).await;
    }
    let dir = running.stop().await;
    let running = start_on(Setup::default(), dir).await;
    assert_eq!(running.all("Orders", 0).await.len(), 10);
    assert_eq!(running.put("Orders", 0, "", "next").await.queue_offset, 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_is_there_after_a_crash() {
    for is_sync in [false, true] {
        let setup = Setup { is_sync, ..Setup::default() };
        let running = start(setup.clone()).await;
        running.put("Orders", 0, "", "one").await;
        running.put("Orders", 0, "", "two").await;
        let image = running.image();
        let again = start_on(setup, image).await;
        let bodies: Vec<String> =
            again.pull(&from("Orders", 0, 0)).await.messages.into_iter().map(|message| message.body).collect();
        assert_eq!(bodies, ["one", "two"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_messages_come_once_though_the_broker_crashes_before_between_and_after() {
    let running = start(Setup::default()).await;
    let delay = properties(&[("DELAY", "1")]);
    for body in ["a", "b", "c"] {
        running.put("Orders", 0, &delay, body).await;
    }
    let before = running.image();
    running.wait_for("Orders", 0, 3).await;
    // The journal may not know yet that they were delivered; the log does.
    let after = running.image();

    for image in [before, after] {
        let again = start_on(Setup::default(), image).await;
        again.put("Orders", 0, &delay, "last").await;
        let mut bodies: Vec<String> =
            again.wait_for("Orders", 0, 4).await.into_iter().map(|message| message.body).collect();
        bodies.sort_unstable();
        assert_eq!(bodies, ["a", "b", "c", "last"]);
    }
}
