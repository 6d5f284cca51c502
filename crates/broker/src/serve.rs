//! The one match on the request code: requests of a burst, and what others have left for its connection.
//!
//! Requests come from `net` in bursts, one task a connection; handlers are synchronous. Those whose work is bounded run on that task
//! and never block; the others run beside (`beside`). What has to be waited for (room in the log, the journal, a flush) is waited for
//! after the handlers, so that a burst waits once.

use std::pin::Pin;

use net::{Answered, Burst, Connection, ListenerTag, Outgoing, Request, Service};
use protocol::code::{Gathers, RequestCode};
use protocol::requests_of;
use tokio::time::Instant;

use crate::broker::Broker;
use crate::client::{assignment, heartbeat, multi_send, offsets, order_lock, pull, query, reply, retry, send, view};
use crate::client_handle::Work;
use crate::inbox::Errand;
use crate::parked::Parked;
use crate::refusal::Refusal;
use crate::session::Session;
use crate::state::role::{Role, Standing};
use crate::to_master::{self, Inner};
use crate::waiting::hold::{Slot, Wake};
use crate::write::append;
use crate::{admin, beside, lite, master, pop, switch, timer, transaction};

/// A connection keeps a buffer for this many errands between bursts.
const ERRANDS_KEPT: usize = 64;

impl Broker {
    /// Carries out requests of a burst, as many as there are or as may be.
    async fn carry_out(&self, session: &mut Session, burst: &mut Burst<'_>, out: &mut Outgoing) {
        while !out.is_full() && !session.keeps_too_many() {
            if !session.sends.for_master.is_empty() {
                Box::pin(to_master::pass_on_left(self, session, burst, out)).await;
            }
            let Some(mut request) = burst.next() else { break };
            if session.sends.is_of_another_kind(request.header.is_oneway()) {
                append::append(self, session, out).await;
            }
            let mut code = RequestCode::from_i32(request.header.code);
            let mut inner: Option<Box<Inner>> = None;
            // The successor gets the last of the journal from a master that is fenced.
            let is_last = code == Some(RequestCode::COPY_JOURNAL);
            let standing = if is_last { self.standing } else { self.standing_now() };
            if let Some(code) = code
                && let Err(refusal) = standing.check(code, || self.reads_as_slave())
            {
                if !session.sends.is_empty() {
                    append::append(self, session, out).await;
                }
                if !session.sends.for_master.is_empty() && is_left_behind(session, code, &request) {
                    continue;
                }
                self.refuse_as_slave(session, code, &request, refusal, out).await;
                continue;
            }
            session.stand_for(None);
            if code == Some(RequestCode::ASK_FOR_CLIENT) {
                match inner.insert(Box::default()).open(self, session, &request) {
                    Ok((of_client, asked)) => (code, request) = (Some(of_client), asked),
                    Err(refusal) => {
                        self.refuse_plainly(&request, &refusal, out);
                        continue;
                    }
                }
            }
            match code.map_or(Gathers::Nothing, |code| code.row().gathers) {
                Gathers::Send => {
                    if let Err(refusal) = send::send(self, session, &request) {
                        send::refuse(self, &request, &refusal, out);
                    }
                    if session.sends.is_full() {
                        append::append(self, session, out).await;
                    }
                }
                Gathers::Sends => multi_send::gather(self, session, &request, out).await,
                Gathers::Recall => {
                    if let Err(refusal) = timer::recall(self, session, &request) {
                        send::refuse(self, &request, &refusal, out);
                    }
                }
                Gathers::Nothing => {
                    // A request that follows a send on its connection finds it stored; with SYNC_FLUSH consumers see it once it is flushed.
                    if !session.sends.is_empty() {
                        append::append(self, session, out).await;
                        // Another broker may have become the master meanwhile.
                        if self.switch.is_fenced()
                            && let Some(code) = code
                            && is_left_behind(session, code, &request)
                        {
                            continue;
                        }
                    }
                    match code {
                        Some(code) if code.row().is_answered_at_once => self.answer(session, Some(code), &request, out),
                        Some(code) if beside::is_wanted_for(&self.clients, code, &request) => {
                            beside::hand_over(&self.beside, session, code, &request, out);
                        }
                        code => session.answering(self, Some(request.reply_to()), out, |session, out| {
                            self.answer(session, code, &request, out);
                        }),
                    }
                    session.give_way().await;
                }
            }
        }
        if !session.sends.is_empty() {
            append::append(self, session, out).await;
        }
        session.stand_for(None);
        if !session.sends.for_master.is_empty() {
            Box::pin(to_master::pass_on_left(self, session, burst, out)).await;
        }
    }

    /// Passes on a request that only the master may carry out, or refuses it.
    #[cold]
    #[inline(never)]
    fn refuse_as_slave<'a>(
        &'a self,
        session: &'a mut Session,
        code: RequestCode,
        request: &'a Request<'_>,
        refusal: Refusal,
        out: &'a mut Outgoing,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        // Boxed, so that it does not weigh on each connection of a master.
        Box::pin(async move {
            if code == RequestCode::ASK_FOR_CLIENT {
                return to_master::refuse_asked(self, request.reply_to(), out);
            }
            if let Err(refusal) = to_master::pass_on(self, session, code, request, refusal).await {
                self.refuse_plainly(request, &refusal, out);
            }
        })
    }

    fn refuse_plainly(&self, request: &Request<'_>, refusal: &Refusal, out: &mut Outgoing) {
        if request.header.is_oneway() {
            self.oneway_refusals.note(refusal, self.clock.now().0);
        }
        out.reply(request.reply_to(), refusal.code, Some(&refusal.remark), &(), &[]);
    }

    /// The part that this broker plays towards clients: one that was deposed is a slave, before it has begun anew as such.
    #[inline]
    fn standing_now(&self) -> Standing {
        if self.switch.is_fenced() { Standing { role: Role::Slave, ..self.standing } } else { self.standing }
    }

    /// Whether a slave answers pulls. One that was the master a moment ago has all of the log that
    /// consumers have read there, and they do not ask another broker before they look at their
    /// route.
    fn reads_as_slave(&self) -> bool {
        let settings = self.settings.load();
        settings.slave_read_enable || settings.forward_to_master && self.switch.is_in_old_routes(self.clock.now())
    }

    /// The end of a burst, or of work that somebody has left for the connection: what lies in its inbox, and the replies that were kept back.
    async fn finish(&self, session: &mut Session, out: &mut Outgoing) {
        // Ends when all is done, or with as much as may be owed or kept back: each round but the last does one errand at least.
        loop {
            let is_done = self.run_errands(session, out).await;
            session.settle(self, out).await;
            if is_done {
                return;
            }
            if out.is_full() {
                return session.inbox.note();
            }
            if session.keeps_too_many() {
                return;
            }
        }
    }

    /// Does what others have laid into the connection's inbox. False where some of it is put back, because of too much that is owed or kept back.
    async fn run_errands(&self, session: &mut Session, out: &mut Outgoing) -> bool {
        // First, because the rest may have to wait for it.
        session.take_let_go(out);
        let (mut errands, mut woken) = (std::mem::take(&mut session.errands), std::mem::take(&mut session.woken));
        session.inbox.take(&mut errands);
        session.inbox.waiter.take(&mut woken);
        let (mut waiting, mut back) = (errands.drain(..), woken.drain(..));
        let mut is_woken = false;
        // One batch of messages may wake every pull of a connection, and each of them answers with a batch.
        while !out.is_full() && !session.keeps_too_many() {
            // By turns, so that neither kind holds up the other.
            is_woken = !(is_woken || back.as_slice().is_empty()) || waiting.as_slice().is_empty();
            if is_woken {
                let Some((slot, wake)) = back.next() else { break };
                self.resume_parked(session, slot, wake, out);
                session.give_way().await;
                continue;
            }
            let Some(errand) = waiting.next() else { break };
            match errand {
                Errand::Frames(frames) => out.extend(frames),
                Errand::Then { is_oneway, then } => {
                    if is_oneway.is_some_and(|is_oneway| session.sends.is_of_another_kind(is_oneway)) {
                        append::append(self, session, out).await;
                    }
                    then(self, session, out);
                    session.give_way().await;
                    if session.sends.is_full() {
                        append::append(self, session, out).await;
                    }
                }
            }
        }
        let is_done = waiting.as_slice().is_empty() && back.as_slice().is_empty();
        if is_done {
            drop((waiting, back));
        } else {
            session.inbox.put_back(waiting);
            session.inbox.waiter.put_back(back);
        }
        // A burst of wake-ups leaves a buffer that is not worth keeping.
        errands.shrink_to(ERRANDS_KEPT);
        woken.shrink_to(ERRANDS_KEPT);
        (session.errands, session.woken) = (errands, woken);
        if !session.sends.is_empty() {
            append::append(self, session, out).await;
        }
        if !session.sends.for_master.is_empty() {
            to_master::refuse_left(self, session, out);
        }
        is_done
    }

    /// Goes on with a request that was parked.
    fn resume_parked(&self, session: &mut Session, slot: Slot, wake: Wake, out: &mut Outgoing) {
        match session.parked.take(slot) {
            Some(Parked::Pull(order, to)) => pull::resume(self, session, order, to, wake, out),
            Some(Parked::Pop(waiting, to)) => pop::wait::resume(self, session, waiting, to, wake, out),
            None => {}
        }
    }

    /// Answers one request, on the thread that its row in [`protocol::code::REQUESTS`] names.
    /// `code` is none if there is no such row.
    pub(crate) fn answer(
        &self,
        session: &mut Session,
        code: Option<RequestCode>,
        request: &Request<'_>,
        out: &mut Outgoing,
    ) {
        let answered = match code {
            Some(code) => self.dispatch(session, code, request, out),
            None => Err(Refusal::not_registered(request.header.code)),
        };
        if let Err(refusal) = answered {
            out.reply(request.reply_to(), refusal.code, Some(&refusal.remark), &(), &[]);
        }
    }

    /// The one match. Sends are not seen here: `carry_out` gathers them.
    #[allow(clippy::too_many_lines, reason = "a match over the table of requests, a line each")]
    fn dispatch(
        &self,
        session: &mut Session,
        code: RequestCode,
        request: &Request<'_>,
        out: &mut Outgoing,
    ) -> Result<(), Refusal> {
        if code.row().is_main_port_only && session.connection.listener() == ListenerTag::VIP {
            return Err(Refusal::not_registered(code.number()));
        }
        match code {
            RequestCode::PULL_MESSAGE | RequestCode::LITE_PULL_MESSAGE => pull::pull(self, session, request, out),
            RequestCode::POP_MESSAGE => pop::pop(self, session, request, out),
            RequestCode::ACK_MESSAGE => pop::ack(self, session, request, out),
            RequestCode::BATCH_ACK_MESSAGE => pop::ack_batch(self, session, request, out),
            RequestCode::CHANGE_MESSAGE_INVISIBLETIME => pop::change(self, session, request, out),
            RequestCode::NOTIFICATION => pop::notify(self, session, request, out),
            RequestCode::POLLING_INFO => pop::polling_info(self, session, request, out),
            RequestCode::PEEK_MESSAGE => pop::peek(self, session, request, out),
            RequestCode::POP_LITE_MESSAGE if self.store.has_light_queues() => {
                pop::pop_lite(self, session, request, out)
            }
            RequestCode::POP_ROLLBACK => pop::rollback(request, out),
            RequestCode::CONSUMER_SEND_MSG_BACK => retry::send_back(self, session, request, out),
            RequestCode::SEND_REPLY_MESSAGE | RequestCode::SEND_REPLY_MESSAGE_V2 => {
                reply::reply(self, session, request, out)
                    .unwrap_or_else(|refusal| send::refuse(self, request, &refusal, out));
                Ok(())
            }
            RequestCode::END_TRANSACTION => transaction::end(self, session, request, out),
            RequestCode::RESUME_CHECK_HALF_MESSAGE => transaction::resume(self, session, request, out),
            RequestCode::VIEW_MESSAGE_BY_ID => view::message_by_id(self, session, request, out),
            RequestCode::QUERY_MESSAGE => query::by_key(&self.store_settings.load(), &self.store, request, out),
            RequestCode::SEARCH_OFFSET_BY_TIMESTAMP => view::offset_by_time(self, session, request, out),
            RequestCode::GET_MAX_OFFSET => view::max_offset(self, session, request, out),
            RequestCode::GET_MIN_OFFSET => view::min_offset(self, session, request, out),
            RequestCode::GET_EARLIEST_MSG_STORETIME => view::earliest_store_time(self, session, request, out),
            RequestCode::HEART_BEAT => heartbeat::beat(self, session, request, out),
            RequestCode::UNREGISTER_CLIENT => heartbeat::unregister(self, session, request, out),
            RequestCode::GET_CONSUMER_LIST_BY_GROUP => heartbeat::consumer_ids(&self.clients, request, out),
            RequestCode::CHECK_CLIENT_CONFIG => heartbeat::check(&self.settings.load(), request, out),
            RequestCode::UPDATE_CONSUMER_OFFSET => offsets::update(self, session, request, out),
            RequestCode::QUERY_CONSUMER_OFFSET => offsets::query(self, session, request, out),
            RequestCode::GET_ALL_CONSUMER_OFFSET => offsets::all(self, request, out),
            RequestCode::CLONE_GROUP_OFFSET => offsets::copy(self, session, request, out),
            RequestCode::LOCK_BATCH_MQ => order_lock::lock(&self.order_locks, request, out),
            RequestCode::UNLOCK_BATCH_MQ => order_lock::unlock(&self.order_locks, request, out),
            RequestCode::QUERY_ASSIGNMENT => assignment::query(self, session, request, out),
            RequestCode::SET_MESSAGE_REQUEST_MODE => {
                pop::mode::set(&self.topics, &self.groups, &self.pops, session, request, out)
            }
            RequestCode::GET_ALL_MESSAGE_REQUEST_MODE => pop::mode::all(&self.pops, request, out),
            RequestCode::UPDATE_AND_CREATE_TOPIC => {
                admin::topics::create(&self.settings.load(), &self.topics, &self.store, session, request, out)
            }
            RequestCode::UPDATE_AND_CREATE_TOPIC_LIST => {
                admin::topics::create_all(&self.settings.load(), &self.topics, &self.store, session, request, out)
            }
            RequestCode::UPDATE_AND_CREATE_STATIC_TOPIC => admin::static_topics::create(self, session, request, out),
            RequestCode::DELETE_TOPIC_IN_BROKER => admin::topics::delete(self, session, request, out),
            RequestCode::GET_ALL_TOPIC_CONFIG => admin::topics::all(&self.topics, request, out),
            RequestCode::GET_TOPIC_CONFIG => admin::topics::one(&self.topics, request, out),
            RequestCode::GET_TOPIC_STATS_INFO => admin::topics::stats(self, session, request, out),
            RequestCode::QUERY_TOPIC_CONSUME_BY_WHO => {
                admin::topics::consumed_by(&self.clients, &self.offsets, request, out)
            }
            RequestCode::GET_SYSTEM_TOPIC_LIST_FROM_BROKER => {
                admin::topics::system(&self.topics, &self.settings.load(), request, out)
            }
            RequestCode::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP => {
                admin::groups::create(&self.groups, &self.topics, &self.store, session, request, out)
            }
            RequestCode::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST => {
                admin::groups::create_all(&self.groups, &self.topics, &self.store, session, request, out)
            }
            RequestCode::DELETE_SUBSCRIPTIONGROUP => admin::groups::delete(self, session, request, out),
            RequestCode::GET_ALL_SUBSCRIPTIONGROUP_CONFIG => admin::groups::all(&self.groups, request, out),
            RequestCode::GET_SUBSCRIPTIONGROUP_CONFIG => admin::groups::one(&self.groups, request, out),
            RequestCode::QUERY_TOPICS_BY_CONSUMER => {
                admin::groups::topics(&self.offsets, self.advertised, request, out)
            }
            RequestCode::QUERY_SUBSCRIPTION_BY_CONSUMER => admin::groups::subscription(&self.clients, request, out),
            RequestCode::UPDATE_AND_GET_GROUP_FORBIDDEN => admin::groups::forbid(&self.groups, session, request, out),
            RequestCode::GET_CONSUMER_CONNECTION_LIST => admin::connections::consumers(&self.clients, request, out),
            RequestCode::GET_PRODUCER_CONNECTION_LIST => admin::connections::producers(&self.clients, request, out),
            RequestCode::GET_ALL_PRODUCER_INFO => {
                admin::connections::all_producers(&self.clients, &self.clock, request, out)
            }
            RequestCode::GET_CONSUMER_RUNNING_INFO => admin::relay::running_info(&self.clients, session, request, out),
            RequestCode::CONSUME_MESSAGE_DIRECTLY => admin::relay::consume_directly(self, session, request, out),
            RequestCode::INVOKE_BROKER_TO_GET_CONSUMER_STATUS => {
                admin::relay::consumer_status(&self.clients, session, request, out)
            }
            RequestCode::INVOKE_BROKER_TO_RESET_OFFSET => admin::reset::reset(self, session, request, out),
            RequestCode::GET_CONSUME_STATS => admin::progress::of_group(self, session, request, out),
            RequestCode::GET_BROKER_CONSUME_STATS => admin::progress::of_all(self, session, request, out),
            RequestCode::QUERY_CONSUME_TIME_SPAN => admin::progress::time_spans(self, session, request, out),
            RequestCode::CLEAN_EXPIRED_CONSUMEQUEUE => admin::cleaning::expired_queues(request, out),
            RequestCode::CLEAN_UNUSED_TOPIC => admin::cleaning::unused_topics(&self.topics, session, request, out),
            RequestCode::DELETE_EXPIRED_COMMITLOG => admin::cleaning::expired_files(&self.store, session, request, out),
            RequestCode::QUERY_CONSUME_QUEUE => {
                admin::queues::units(&self.store, &self.topics, &self.clients, &self.conditions, request, out)
            }
            RequestCode::QUERY_CORRECTION_OFFSET => {
                admin::queues::corrections(&self.offsets, &self.store, request, out)
            }
            RequestCode::CHECK_ROCKSDB_CQ_WRITE_PROGRESS => admin::rocksdb::check(&self.topics, request, out),
            RequestCode::EXPORT_ROCKSDB_CONFIG_TO_JSON => admin::rocksdb::export(request, out),
            RequestCode::UPDATE_COLD_DATA_FLOW_CTR_CONFIG => admin::cold_data::update(&self.cold_limits, request, out),
            RequestCode::REMOVE_COLD_DATA_FLOW_CTR_CONFIG => admin::cold_data::remove(&self.cold_limits, request, out),
            RequestCode::GET_COLD_DATA_FLOW_CTR_INFO => {
                admin::cold_data::show(&self.configuration, &self.cold_limits, request, out)
            }
            RequestCode::SET_COMMITLOG_READ_MODE => admin::cold_data::set_read_mode(&self.store, session, request, out),
            RequestCode::AUTH_CREATE_USER
            | RequestCode::AUTH_UPDATE_USER
            | RequestCode::AUTH_DELETE_USER
            | RequestCode::AUTH_GET_USER
            | RequestCode::AUTH_LIST_USER
            | RequestCode::AUTH_CREATE_ACL
            | RequestCode::AUTH_UPDATE_ACL
            | RequestCode::AUTH_DELETE_ACL
            | RequestCode::AUTH_GET_ACL
            | RequestCode::AUTH_LIST_ACL => Err(admin::access::refuse(request)),
            RequestCode::NOTIFY_MIN_BROKER_ID_CHANGE => admin::replicas::min_broker_id_changed(request, out),
            RequestCode::EXCHANGE_BROKER_HA_INFO => {
                admin::replicas::exchange(self.advertised, &self.ha_address, self.log_end_at_start, request, out)
            }
            RequestCode::GET_BROKER_EPOCH_CACHE => Err(admin::replicas::epochs()),
            RequestCode::NOTIFY_BROKER_ROLE_CHANGED => admin::replicas::role_changed(request, out),
            RequestCode::GET_BROKER_HA_STATUS => admin::replicas::status(self, request, out),
            RequestCode::RESET_MASTER_FLUSH_OFFSET => admin::replicas::reset_flushed(request, out),
            RequestCode::COPY_JOURNAL => master::copy_journal(self, session, request),
            RequestCode::GET_MEMBER_STATE => switch::requests::state(self, request, out),
            RequestCode::HAND_OVER_MASTER => switch::requests::hand_over(self, request, out),
            RequestCode::TAKE_OVER_MASTER => switch::requests::take_over(self, session, request, out),
            RequestCode::UPDATE_BROKER_CONFIG => admin::configuration::update(self, session, request, out),
            RequestCode::GET_BROKER_CONFIG => admin::configuration::all(&self.configuration, request, out),
            RequestCode::GET_BROKER_RUNTIME_INFO => admin::runtime::info(self, request, out),
            RequestCode::VIEW_BROKER_STATS_DATA => admin::runtime::stats(&self.stats, request, out),
            RequestCode::GET_TIMER_CHECK_POINT => admin::timers::marks(self.timers.as_deref(), request, out),
            RequestCode::GET_TIMER_METRICS => admin::timers::metrics(self.timers.as_deref(), request, out),
            RequestCode::SWITCH_TIMER_ENGINE => admin::timers::switch_engine(self.timers.as_deref(), request, out),
            RequestCode::GET_ALL_DELAY_OFFSET => admin::runtime::delay_offsets(&self.delay, request, out),
            RequestCode::LITE_SUBSCRIPTION_CTL if self.store.has_light_queues() => {
                lite::control(self, session, request, out)
            }
            RequestCode::GET_BROKER_LITE_INFO => lite::of_broker(self, request, out),
            RequestCode::GET_PARENT_TOPIC_INFO => {
                lite::of_parent_topic(&self.topics, &self.store, &self.groups, request, out)
            }
            RequestCode::GET_LITE_TOPIC_INFO => {
                lite::of_lite_topic(&self.topics, &self.store, &self.groups, &self.lite, request, out)
            }
            RequestCode::GET_LITE_CLIENT_INFO => lite::of_client(&self.topics, &self.groups, &self.lite, request, out),
            RequestCode::GET_LITE_GROUP_INFO => lite::of_group(&self.groups, &self.offsets, &self.store, request, out),
            RequestCode::TRIGGER_LITE_DISPATCH => lite::trigger(&self.groups, &self.lite, request, out),
            RequestCode::POP_LITE_MESSAGE | RequestCode::LITE_SUBSCRIPTION_CTL => {
                let mut refusal = Refusal::not_registered(code.number());
                refusal
                    .remark
                    .push_str(": this broker has no lite topics, since enableLmq or enableMultiDispatch is false");
                Err(refusal)
            }
            RequestCode::SEND_MESSAGE
            | RequestCode::SEND_MESSAGE_V2
            | RequestCode::SEND_BATCH_MESSAGE
            | RequestCode::SEND_TOGETHER
            | RequestCode::RECALL_MESSAGE
            | RequestCode::ASK_FOR_CLIENT
            | requests_of!(NameServer)
            | requests_of!(Controller)
            | requests_of!(Container)
            | requests_of!(Client)
            | requests_of!(Nobody) => Err(Refusal::not_registered(code.number())),
        }
    }
}

/// Takes a request aside for the broker that has become the master, behind the sends before it. False if it is not passed on.
fn is_left_behind(session: &mut Session, code: RequestCode, request: &Request<'_>) -> bool {
    let row = code.row();
    let is_elsewhere = row.is_main_port_only && session.connection.listener() == ListenerTag::VIP;
    let is_left = row.is_passed_on && !is_elsewhere;
    if is_left {
        session.sends.for_master.push(request.reply_to());
    }
    is_left
}

impl Service for Broker {
    type Session = Session;
    type Work = Work;

    fn open(&self, connection: &Connection<Work>) -> Session {
        Session::open(self, connection)
    }

    async fn serve(&self, session: &mut Session, burst: &mut Burst<'_>, out: &mut Outgoing) {
        // Ends with the burst, or with as much as may be owed or kept back: each round but the last carries out one request at least.
        loop {
            self.carry_out(session, burst, out).await;
            self.finish(session, out).await;
            if burst.is_last() || out.is_full() {
                return;
            }
            if session.keeps_too_many() {
                return burst.leave_rest();
            }
        }
    }

    async fn resume(&self, session: &mut Session, work: Work, out: &mut Outgoing) {
        match work {
            Work::Errands => self.finish(session, out).await,
        }
    }

    fn rested(&self, session: &mut Session) {
        session.rest();
    }

    fn answered(&self, answered: &[Answered], at: Instant) {
        self.stats.rpcs.answered(answered, at);
    }

    fn goes_away(&self) {
        self.to_master.going.send_replace(());
        self.hold.end_all();
    }

    fn close(&self, mut session: Session) {
        append::give_up(self, &mut session.sends);
        self.limits.closed(session.connection.listener());
        let id = session.connection.id();
        beside::at_the_end(self, id, self.clients.has_crowd(), move |broker| heartbeat::closed(broker, id));
        session.forget(&self.hold);
    }
}
