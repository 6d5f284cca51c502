//! Which queues of a topic belong to which member of a group.

use protocol::body::MessageQueue;

/// RocketMQ's AVG strategy: contiguous shares, the first members getting one more where it does not come out even.
///
/// Every member computes this for itself from the same sorted lists, so all must do it alike: Java members are among them. A
/// member that is not in the list gets nothing.
pub fn allocate(queues: &[MessageQueue], members: &[String], me: &str) -> Vec<MessageQueue> {
    let mut queues = queues.to_vec();
    // As Java compares queues: topic, broker, number.
    queues.sort_by(|a, b| (&a.topic, &a.broker_name, a.queue_id).cmp(&(&b.topic, &b.broker_name, b.queue_id)));
    let mut members: Vec<&str> = members.iter().map(String::as_str).collect();
    members.sort_unstable();
    members.dedup();
    let Some(index) = members.iter().position(|member| *member == me) else { return Vec::new() };
    let (share, extra) = (queues.len() / members.len(), queues.len() % members.len());
    let start = index * share + index.min(extra);
    let count = share + usize::from(index < extra);
    queues.into_iter().skip(start).take(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn queues(count: i32) -> Vec<MessageQueue> {
        (0..count).map(|queue_id| MessageQueue { topic: "t".into(), broker_name: "b".into(), queue_id }).collect()
    }

    fn ids(queues: Vec<MessageQueue>) -> Vec<i32> {
        queues.into_iter().map(|queue| queue.queue_id).collect()
    }

    #[test]
    fn shares_are_those_that_java_members_compute() {
        let members = ["c".to_owned(), "a".to_owned(), "b".to_owned()];
        let of = |count, me: &str| ids(allocate(&queues(count), &members, me));
        assert_eq!((of(8, "a"), of(8, "b"), of(8, "c")), (vec![0, 1, 2], vec![3, 4, 5], vec![6, 7]));
        assert_eq!((of(2, "a"), of(2, "b"), of(2, "c")), (vec![0], vec![1], vec![]));
        assert_eq!(of(4, "stranger"), Vec::<i32>::new());
        assert_eq!(ids(allocate(&queues(4), &[], "a")), Vec::<i32>::new());
    }

    proptest! {
        #[test]
        fn every_queue_belongs_to_exactly_one_member(count in 0i32..200, members in 1usize..40) {
            let members: Vec<String> = (0..members).map(|n| format!("10.0.0.{n}@1")).collect();
            let mut all: Vec<i32> = members.iter().flat_map(|me| ids(allocate(&queues(count), &members, me))).collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..count).collect::<Vec<_>>());
            let sizes: Vec<usize> = members.iter().map(|me| allocate(&queues(count), &members, me).len()).collect();
            prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
        }
    }
}
