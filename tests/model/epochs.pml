/* Epochs that end before rounds come again (docs/contributors/protocol.md, "Epochs end") as a model. protocol.pml has the rest of the protocol,
 * and says what the network here is: a set of messages, each of which arrives at any time, any number of times, or never. Here that
 * is also whoever has recorded the packets of a job with a key, and sends them again.
 *
 *   WIRE, EPOCH_ROUNDS, ROUNDS, QUORUM, CRASHES, SERVER_RESTARTS    a configuration
 *   MUTATE_...                                                      one rule left out, which must be found
 *
 * Two workers, one slot of two versions. On the wire a round is a number modulo WIRE (2^32), and an epoch has EPOCH_ROUNDS of them
 * (2^30); everything else here counts true rounds, which no program knows, from 1 for each process.
 *
 * What is checked:
 *   EXACT   a result holds the contribution of each worker once, all of the same true round, and at least QUORUM of them.
 *   SAME    all results of a round of an incarnation are equal, in whatever epoch they are sent.
 *   OWN     a worker takes results, and believes that it was left behind, of its own true round only.
 *   TOLD    who was in a job that has started over is not told that it is unknown: it would wait for what will never be.
 *   ENDS    every run ends in results or, only if something died, in an error.
 */

#define N 2
#ifndef QUORUM
#define QUORUM N
#endif
#ifndef WIRE
#define WIRE 6 /* the least: a version may be two rounds old, which must be less than half */
#endif
#ifndef EPOCH_ROUNDS
#define EPOCH_ROUNDS 2
#endif
#define BEHIND (EPOCH_ROUNDS / 2) /* rounds before the first one that an epoch takes as well */
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef SERVER_RESTARTS
#define SERVER_RESTARTS 0
#endif
#define PROCESSES 2 /* of a worker, one after the other */
#ifndef EPOCHS
#define EPOCHS 4
#endif
#define NONE EPOCHS

#define IN(set, element) (((set) & (element)) != 0)
#define AT(w, e) ((w) * EPOCHS + (e))
#define ROUND(r) (1 << ((r) - 1))
#define EPOCH(e) (1 << (e))
#define W(r) ((r) % WIRE)
/* A sum: two bits for each worker, 0 or 1 + the process whose contribution is in it. */
#define WHO(sum, w) (((sum) >> (2 * (w))) & 3)
#define COUNT(sum) ((WHO(sum, 0) != 0) + (WHO(sum, 1) != 0))

/* ---- the network ---- */
byte sent[N * EPOCHS];       /* by w in an epoch: rounds */
byte results[N * EPOCHS];    /* to w in an epoch: rounds */
byte stragglers[N * EPOCHS]; /* likewise */
byte renewals[N * EPOCHS];    /* ERROR new_epoch to w about an epoch: the ones to go on in */
byte unknown_job[N];          /* ERROR to w about epochs */
byte stale_epoch[N];
byte hello[N];                /* processes */
byte welcome[N * PROCESSES];  /* epochs */

/* ---- workers ---- */
#define JOINING 0
#define RUNNING 1
#define DONE 2
#define FAILED 3
typedef WorkerState {
    byte state;
    byte process;
    byte epoch;
    byte round;
    bool waiting;
    byte lost; /* epochs: a WELCOME of one is a late copy */
};
WorkerState worker[N];
bool something_died;
byte crashes_left = CRASHES, restarts_left = SERVER_RESTARTS;
byte process_in[N * EPOCHS]; /* 1 + the process of w in an epoch */

/* ---- the server ---- */
byte epoch = NONE, next_epoch = 0;
byte member[N];   /* 0, or 1 + the process */
byte gone[N];     /* processes that were replaced: their HELLO is dropped */
byte renewed;     /* epochs of these workers before this one; thc-ps remembers four */
byte superseded;  /* epochs of incarnations before; likewise */
byte started_over; /* what `superseded` must be */
byte first;       /* 1 + the wire round that began this epoch; 0: none yet */
byte incarnation;
typedef Version {
    bool used;
    byte round;
    bool complete;
    byte sum;
    bool wrong; /* has a contribution of another true round, or one twice */
};
Version version[2];
byte result_of[3 * (ROUNDS + 1)]; /* incarnation, round */

hidden byte w_, e_, r_, v_, i_;

/* Serial numbers (RFC 1982). */
#define IS_LATER(a, b) (W((a) + 4 * WIRE - (b)) != 0 && W((a) + 4 * WIRE - (b)) < WIRE / 2)
#define IS_AFTER(r, v) (!version[v].used || IS_LATER(r, version[v].round))
#define STARTS_OVER(r) (IS_AFTER(r, 0) && IS_AFTER(r, 1))
#define IS_HERE(r) (version[(r) & 1].used && W(version[(r) & 1].round) == W(r))
#define STRAGGLES(r) (!STARTS_OVER(r) && !IS_HERE(r))
#define IS_CLOSED(w, r) (version[(r) & 1].complete || WHO(version[(r) & 1].sum, w) != 0)
#ifdef MUTATE_NO_RENEWAL
#define ENDS_EPOCH(r) false
#else
#define ENDS_EPOCH(r) \
    (next_epoch < EPOCHS && STARTS_OVER(r) && first != 0 && W((r) + 4 * WIRE + BEHIND - (first - 1)) >= EPOCH_ROUNDS + BEHIND)
#endif
#ifdef MUTATE_ENDED_EPOCHS_COUNT
#define IS_CURRENT(e) ((e) == epoch || IN(renewed, EPOCH(e)))
#else
#define IS_CURRENT(e) ((e) == epoch)
#endif

#define IS_REGISTERED(w, e) (member[w] != 0 && member[w] == process_in[AT(w, e)])
#define ASKS(w, e, r) \
    (worker[w].state == RUNNING && worker[w].epoch == (e) && worker[w].waiting && worker[w].round == (r) \
     && process_in[AT(w, e)] == 1 + worker[w].process)
/* Whether a packet changes anything when it arrives. */
#define CHANGES_SLOT(w, e, r) \
    (STARTS_OVER(r) || (STRAGGLES(r) -> ASKS(w, e, r) && !IN(stragglers[AT(w, e)], ROUND(r)) : \
     (!IS_CLOSED(w, r) || (version[(r) & 1].complete && ASKS(w, e, r) && \
                            !IN(results[AT(w, epoch)], ROUND(version[(r) & 1].round))))))
#define IS_TOLD(w, e) (IN(unknown_job[w], EPOCH(e)) || IN(stale_epoch[w], EPOCH(e)))
#define IS_NEWS(w, e, r) \
    (IN(sent[AT(w, e)], ROUND(r)) && \
     (epoch != NONE && IS_REGISTERED(w, e) && IS_CURRENT(e) -> CHANGES_SLOT(w, e, r) : \
      (ASKS(w, e, r) && !IS_TOLD(w, e) && (epoch == NONE || !IN(renewals[AT(w, e)], EPOCH(epoch))))))

/* ---- the server's part ---- */
inline open_epoch() {
    assert(next_epoch < EPOCHS);
    epoch = next_epoch;
    next_epoch++;
    first = 0
}

inline forget_slots() {
    d_step {
        version[0].used = false; version[0].round = 0; version[0].complete = false; version[0].sum = 0; version[0].wrong = false;
        version[1].used = false; version[1].round = 0; version[1].complete = false; version[1].sum = 0; version[1].wrong = false
    }
}

inline renew_epoch() {
    renewed = renewed | EPOCH(epoch);
    i_ = epoch;
    open_epoch();
    process_in[AT(0, epoch)] = member[0];
    process_in[AT(1, epoch)] = member[1];
    if :: member[0] != 0 -> renewals[AT(0, i_)] = renewals[AT(0, i_)] | EPOCH(epoch) :: else fi;
    if :: member[1] != 0 -> renewals[AT(1, i_)] = renewals[AT(1, i_)] | EPOCH(epoch) :: else fi;
#ifdef MUTATE_RENEWAL_CLEARS_SLOTS
    forget_slots();
#endif
    i_ = 0
}

inline send_result_to(w) {
    results[AT(w, epoch)] = results[AT(w, epoch)] | ROUND(version[v_].round)
}

/* EXACT, SAME. */
inline check_result() {
    assert(!version[v_].wrong && COUNT(version[v_].sum) >= QUORUM);
    i_ = incarnation * (ROUNDS + 1) + version[v_].round;
    assert(result_of[i_] == 0 || result_of[i_] == version[v_].sum);
    result_of[i_] = version[v_].sum;
    i_ = 0
}

inline add() {
    version[v_].wrong = version[v_].wrong || version[v_].round != r_ || WHO(version[v_].sum, w_) != 0;
    version[v_].sum = version[v_].sum | (process_in[AT(w_, e_)] << (2 * w_));
    if
    :: COUNT(version[v_].sum) >= QUORUM ->
        version[v_].complete = true;
        check_result();
        if :: member[0] != 0 -> send_result_to(0) :: else fi;
        if :: member[1] != 0 -> send_result_to(1) :: else fi
    :: else
    fi
}

inline contribute() {
    v_ = r_ & 1;
    if
    :: ENDS_EPOCH(r_) -> renew_epoch()
    :: else ->
        if
        :: STARTS_OVER(r_) ->
            if :: first == 0 -> first = 1 + W(r_) :: else fi;
            version[v_].used = true; version[v_].round = r_; version[v_].complete = false;
            version[v_].sum = 0; version[v_].wrong = false;
            add()
        :: else ->
            if
            :: STRAGGLES(r_) -> stragglers[AT(w_, e_)] = stragglers[AT(w_, e_)] | ROUND(r_)
            :: else ->
                if
                :: IS_CLOSED(w_, r_) -> check_result(); send_result_to(w_)
                :: else -> add()
                fi
            fi
        fi
    fi
}

/* "Packets of other incarnations" */
inline take_contribution() {
    if
    :: epoch != NONE && IS_REGISTERED(w_, e_) && IS_CURRENT(e_) -> contribute()
#ifndef MUTATE_ENDED_EPOCHS_UNKNOWN
    :: epoch != NONE && IS_REGISTERED(w_, e_) && !IS_CURRENT(e_) && IN(renewed, EPOCH(e_)) ->
        renewals[AT(w_, e_)] = renewals[AT(w_, e_)] | EPOCH(epoch)
#endif
    :: else ->
        if
        :: IN(superseded, EPOCH(e_)) -> stale_epoch[w_] = stale_epoch[w_] | EPOCH(e_)
        :: else ->
            if
            :: epoch == NONE || IS_REGISTERED(w_, e_) || member[w_] == 0 ->
                assert(!IN(started_over, EPOCH(e_))); /* TOLD */
                unknown_job[w_] = unknown_job[w_] | EPOCH(e_)
            :: else /* dropped */
            fi
        fi
    fi
}

#define IS_ALIVE(w) (member[w] == 1 + worker[w].process && worker[w].state <= RUNNING)
#define IS_HELLO_NEWS(w, p) \
    (IN(hello[w], 1 << (p)) && !IN(gone[w], 1 << (p)) && (epoch != NONE || next_epoch < EPOCHS) && \
     (epoch == NONE || member[w] == 0 || (member[w] == 1 + (p) && !IN(welcome[PROCESSES * (w) + (p)], EPOCH(epoch))) \
      || (member[w] != 1 + (p) && !IS_ALIVE(w) && next_epoch < EPOCHS)))

inline take_hello(w, p) {
    if
    :: epoch == NONE -> open_epoch()
    :: epoch != NONE && member[w] != 0 && member[w] != 1 + p -> /* the job starts over */
        gone[w] = gone[w] | (1 << (member[w] - 1));
        started_over = started_over | renewed | EPOCH(epoch);
#ifdef MUTATE_RENEWED_FORGOTTEN
        superseded = superseded | EPOCH(epoch);
#else
        superseded = superseded | renewed | EPOCH(epoch);
#endif
        renewed = 0;
        open_epoch();
        incarnation++;
        member[0] = 0; member[1] = 0;
        forget_slots()
    :: else
    fi;
    assert(process_in[AT(w, epoch)] == 0 || process_in[AT(w, epoch)] == 1 + p);
    process_in[AT(w, epoch)] = 1 + p;
    member[w] = 1 + p;
    welcome[PROCESSES * (w) + p] = welcome[PROCESSES * (w) + p] | EPOCH(epoch)
}

#define PICK(w, e, r) :: IS_NEWS(w, e, r) -> w_ = w; e_ = e; r_ = r;
#define EACH_ROUND_2(w, e) PICK(w, e, 1) PICK(w, e, 2)
#define EACH_ROUND_3(w, e) EACH_ROUND_2(w, e) PICK(w, e, 3)
#define EACH_ROUND_7(w, e) EACH_ROUND_3(w, e) PICK(w, e, 4) PICK(w, e, 5) PICK(w, e, 6) PICK(w, e, 7)
#define PASTE(a, b) a##b
#define EACH_ROUND_OF(n) PASTE(EACH_ROUND_, n)
#define EACH_ROUND(w, e) EACH_ROUND_OF(ROUNDS)(w, e)
#if EPOCHS > 4
#define EPOCH_4(DO) DO(4)
#else
#define EPOCH_4(DO)
#endif
#define EACH_EPOCH(DO) DO(0) DO(1) DO(2) DO(3) EPOCH_4(DO)
#define PICK_0(e) EACH_ROUND(0, e)
#define PICK_1(e) EACH_ROUND(1, e)

active proctype Server() {
end:
    do
    :: atomic {
        if
        EACH_EPOCH(PICK_0)
        EACH_EPOCH(PICK_1)
        fi;
        take_contribution();
        w_ = 0; e_ = 0; r_ = 0; v_ = 0
    }
    :: atomic { IS_HELLO_NEWS(0, 0) -> take_hello(0, 0) }
    :: atomic { IS_HELLO_NEWS(1, 0) -> take_hello(1, 0) }
#if CRASHES > 0 || SERVER_RESTARTS > 0
    :: atomic { IS_HELLO_NEWS(0, 1) -> take_hello(0, 1) }
    :: atomic { IS_HELLO_NEWS(1, 1) -> take_hello(1, 1) }
#endif
#if SERVER_RESTARTS > 0
    :: atomic { restarts_left > 0 && epoch != NONE ->
        restarts_left--;
        something_died = true;
        epoch = NONE; first = 0; renewed = 0; superseded = 0; started_over = 0;
        incarnation++;
        member[0] = 0; member[1] = 0;
        gone[0] = 0; gone[1] = 0;
        forget_slots()
    }
#endif
    od
}

/* ---- a worker's part ---- */
inline forget_session(w) {
    worker[w].round = 0; worker[w].waiting = false; worker[w].epoch = 0; worker[w].lost = 0;
    unknown_job[w] = 0; stale_epoch[w] = 0; /* what was for this process finds nobody */
    i_ = 0;
    do
    :: i_ < EPOCHS -> results[AT(w, i_)] = 0; stragglers[AT(w, i_)] = 0; renewals[AT(w, i_)] = 0; i_++
    :: else -> break
    od;
    i_ = 0
}

inline fail(w) {
    assert(something_died); /* ENDS */
    worker[w].state = FAILED;
    forget_session(w)
}

inline say_hello(w) {
    worker[w].state = JOINING;
    hello[w] = hello[w] | (1 << worker[w].process)
}

inline start_again(w) {
    forget_session(w);
    worker[w].process++;
    say_hello(w)
}

inline send(w) {
    sent[AT(w, worker[w].epoch)] = sent[AT(w, worker[w].epoch)] | ROUND(worker[w].round)
}

inline go_on_in(w, e) {
    worker[w].lost = worker[w].lost | EPOCH(worker[w].epoch);
    worker[w].epoch = e;
#ifndef MUTATE_NOT_REPEATED
    if :: worker[w].waiting -> send(w) :: else fi
#endif
}

inline rejoin(w) {
    unknown_job[w] = 0;
    worker[w].lost = worker[w].lost | EPOCH(worker[w].epoch);
    if :: QUORUM < N -> fail(w) :: else -> say_hello(w) fi
}

inline take_welcome(w, e) {
    worker[w].state = RUNNING;
    worker[w].epoch = e;
    if :: worker[w].waiting -> send(w) :: else fi
}

/* Half of all rounds take days, and deadlines are shorter: nobody is left so far behind. */
#define IS_NEAR(w) (QUORUM == N || worker[1 - (w)].state > RUNNING || worker[w].round < worker[1 - (w)].round + WIRE / 2 - 1)
#define MAY_SEND(w) (worker[w].state == RUNNING && !worker[w].waiting && worker[w].round < ROUNDS && IS_NEAR(w))
#ifdef MUTATE_ANY_EPOCHS_RESULT
#define HAS(w, set, r) \
    (IN(set[AT(w, 0)], ROUND(r)) || IN(set[AT(w, 1)], ROUND(r)) || IN(set[AT(w, 2)], ROUND(r)) \
     || IN(set[AT(w, 3)], ROUND(r)))
#else
#define HAS(w, set, r) IN(set[AT(w, worker[w].epoch)], ROUND(r))
#endif
#define WAITS(w) (worker[w].state == RUNNING && worker[w].waiting)
/* OWN: what else has this round's number on the wire. */
#define HAS_OTHER(w, set) \
    (WAITS(w) && ((worker[w].round > WIRE && HAS(w, set, worker[w].round - WIRE)) \
                  || (worker[w].round + WIRE <= ROUNDS && HAS(w, set, worker[w].round + WIRE))))
#define IS_RENEWAL(w, e) (worker[w].state == RUNNING && IN(renewals[AT(w, worker[w].epoch)], EPOCH(e)))
#define IS_WELCOME(w, e) \
    (worker[w].state == JOINING && IN(welcome[PROCESSES * (w) + worker[w].process], EPOCH(e)) && !IN(worker[w].lost, EPOCH(e)))
#define IS_REFUSED(w, errors) (WAITS(w) && IN(errors[w], EPOCH(worker[w].epoch)))
#define GO_ON(e) \
    :: atomic { IS_WELCOME(w, e) -> take_welcome(w, e) } \
    :: atomic { IS_RENEWAL(w, e) -> go_on_in(w, e) }

proctype Worker(byte w) {
    atomic { say_hello(w) };
end_waiting:
    do
    EACH_EPOCH(GO_ON)
    :: atomic { MAY_SEND(w) -> worker[w].round++; worker[w].waiting = true; send(w) }
    :: atomic { WAITS(w) && HAS(w, results, worker[w].round) -> worker[w].waiting = false }
    :: atomic { WAITS(w) && QUORUM < N && HAS(w, stragglers, worker[w].round) -> worker[w].waiting = false }
    :: atomic { WAITS(w) && QUORUM == N && HAS(w, stragglers, worker[w].round) -> fail(w) }
    :: atomic { HAS_OTHER(w, results) || HAS_OTHER(w, stragglers) -> assert(false) }
    :: atomic { IS_REFUSED(w, stale_epoch) -> fail(w) }
    :: atomic { IS_REFUSED(w, unknown_job) -> rejoin(w) }
    :: atomic { worker[w].state == RUNNING && !worker[w].waiting && worker[w].round == ROUNDS -> worker[w].state = DONE }
#if CRASHES > 0
    :: atomic { crashes_left > 0 && worker[w].state <= RUNNING -> crashes_left--; something_died = true; start_again(w) }
    :: atomic { worker[w].state == FAILED && worker[w].process + 1 < PROCESSES -> start_again(w) }
#endif
    :: atomic { timeout && worker[w].state <= RUNNING -> fail(w) } /* its deadline */
    od
}

init {
    atomic { run Worker(0); run Worker(1) }
}
