/* The slots, rounds and epochs of docs/contributors/protocol.md as a model that spin explores completely. README.md says how to run it, and
 * what was found; check.py has the configurations and the mutations, which are macros:
 *
 *   QUORUM, ROUNDS, LOSSES, LOSS_TOLERANT, TWO_STREAM_SLOTS, ONE_SLOT, CRASHES, DEATHS, SERVER_RESTARTS, RETURNS,
 *   SWITCH                                                               a configuration
 *   MUTATE_...                                                           one rule left out, which must be found
 *
 * Three workers, two slots of two versions. Slot NORM takes norms, slot CODES takes codes, which are quantized with the maximum
 * norm of the same round (with TWO_STREAM_SLOTS both take codes, packet after packet).
 *
 * The network is a set of messages for each receiver. What was sent once may arrive at any time, in any order, any number of
 * times, or never; so a contribution that is lost, or sent again, or delayed over rounds and epochs needs no steps of its own.
 * A step is modelled only where it changes something: ERROR `incomplete`, which changes nothing but a timer, is none. Results
 * can be lost for good (LOSSES), until the worker asks again. So runs are finite, and "nothing can happen any more" (spin's
 * `timeout`) is the moment when deadlines pass.
 *
 * What is checked (search for the names):
 *   EXACT      a result holds the contribution of each worker in the bitmap exactly once, all of the slot's round, of the job's
 *              epoch, quantized with one maximum norm, and at least QUORUM of them. A worker that a quorum left behind in the
 *              norms has none, and thc-ps does not add its codes (`abstain`); a switch does, as zeros.
 *   SAME       all results of a round of an epoch are equal; so are those that living workers took, of whatever epoch.
 *   LEFT_BEHIND  who is told that a quorum is past a round is told so of one that has had a result.
 *   ONE_PROCESS  an epoch has one process for each worker.
 *   ENDS       every run ends in results or, only if something died, in an error. Nothing hangs. DEATHS of a quorum are none.
 */

#define N 3
#define SLOTS 2
#define NORM 0
#define CODES 1
#ifndef QUORUM
#define QUORUM N
#endif
#ifndef ROUNDS
#define ROUNDS 3 /* 1 .. 3: the least in which a version is used again */
#endif
#ifndef LOSSES
#define LOSSES 1
#endif
#ifndef LOSS_TOLERANT
#define LOSS_TOLERANT 0
#endif
#ifndef CRASHES
#define CRASHES 0 /* of workers, which are started again */
#endif
#ifndef DEATHS
#define DEATHS 0 /* of workers, which are not: as many as a quorum does without */
#endif
#ifndef SERVER_RESTARTS
#define SERVER_RESTARTS 0
#endif
#ifndef RETURNS
#define RETURNS 0 /* workers that close their session and open it again: at most */
#endif
#if CRASHES > 0 || SERVER_RESTARTS > 0 || RETURNS > 0
#define MORTAL
#define PROCESSES 2 /* of a worker, one after the other: 0, 1 */
#define EPOCHS 3
#else
#define PROCESSES 1
#define EPOCHS 1
#endif
#define NONE EPOCHS

/* Sets of (slot, round), of epochs and of workers are bits of a byte. */
#define BIT(s, r) (1 << ((s) * ROUNDS + (r) - 1))
#define AT(w, e) ((w) * EPOCHS + (e))
#define IN(set, element) (((set) & (element)) != 0)

/* A sum, as its two bits for each worker say it: 0, or 1 + the process whose contribution is in it. */
#define PART(w, process) ((1 + (process)) << (2 * (w)))
#define WHO(sum, w) (((sum) >> (2 * (w))) & 3)
#define COUNT(sum) ((WHO(sum, 0) != 0) + (WHO(sum, 1) != 0) + (WHO(sum, 2) != 0))
#define BITMAP(sum) ((WHO(sum, 0) != 0) | (WHO(sum, 1) != 0) << 1 | (WHO(sum, 2) != 0) << 2)

/* ---- the network ---- */
byte sent[N * EPOCHS];       /* NORM and CODES from w in epoch e: (slot, round) */
byte quantized[N * EPOCHS * ROUNDS];  /* CODES of w, e, round: the maximum norm that they were quantized with; 0: all zero */
byte results[N * EPOCHS];    /* MAX_NORM and AGGREGATE to w: (slot, round) */
byte stragglers[N * EPOCHS]; /* STRAGGLER to w: (slot, round) */
byte unknown_job[N];         /* ERROR unknown_job to w about epochs */
byte stale_epoch[N];         /* ERROR stale_epoch to w about epochs */
byte hello[N];               /* HELLO from w: processes */
byte welcome[N * 2];         /* WELCOME to a process of w: epochs */
byte goodbye[N];             /* GOODBYE from w: epochs */
byte losses_left = LOSSES;

/* What a result of an epoch says. */
byte result_of[EPOCHS * SLOTS * ROUNDS];
#define RESULT(e, s, r) result_of[((e) * SLOTS + (s)) * ROUNDS + (r) - 1]
#if QUORUM < N && !defined MORTAL
byte completed; /* (slot, round) that have had a result */
#endif
#define QUANTIZED(w, e, r) quantized[((w) * EPOCHS + (e)) * ROUNDS + (r) - 1]

/* ---- workers ---- */
#define JOINING 0
#define RUNNING 1
#define LEFT 2
#define FAILED 3
typedef WorkerState {
    byte state;
    byte process;
    byte epoch;
    bool waiting[SLOTS];
    byte round[SLOTS];          /* of the packet in flight, or of the last one that was */
    byte took[SLOTS * ROUNDS];  /* results; 0: none yet, or left behind */
#ifdef MORTAL
    byte lost;                  /* epochs that the server has refused as unknown: a WELCOME of one is a late copy */
#endif
};
WorkerState worker[N];
#define TOOK(w, s, r) worker[w].took[(s) * ROUNDS + (r) - 1]
#define IS_DONE(w) (!worker[w].waiting[0] && !worker[w].waiting[1] && \
                    worker[w].round[0] == ROUNDS && (worker[w].round[1] == ROUNDS || !IS_USED(1)))
bool something_died;  /* a crash, a restart: only then may a run end in an error */
byte crashes_left = CRASHES, deaths_left = DEATHS, restarts_left = SERVER_RESTARTS, returns_left = RETURNS;

/* ---- the job on the aggregator ("Joining") ---- */
byte epoch = NONE, next_epoch = 0;
byte superseded = NONE;  /* the last one; thc-ps remembers four */
byte member[N];          /* 0, or 1 + the process that said HELLO: its nonce */
byte joined;             /* workers that did not say GOODBYE */

/* ---- the slots ("Slots") ---- */
typedef Version {
    byte round;     /* 0: never used */
    byte bitmap;
    byte contributions;
    bool complete;
    /* What has really been added, which no aggregator knows: */
    byte sum;
    byte norm;      /* the maximum norm that it was quantized with */
    bool wrong;     /* a contribution twice, of another round or epoch, or quantized with another norm */
};
Version version[SLOTS * 2];
#ifdef MUTATE_ONE_VERSION
#define V(s, r) (2 * (s))
#else
#define V(s, r) (2 * (s) + ((r) & 1))
#endif

/* The conditions of the table in "Slots". Rounds do not wrap around here. */
#define STARTS_OVER(s, r) (version[2 * (s)].round < (r) && version[2 * (s) + 1].round < (r))
#ifdef MUTATE_NO_ROUND_CHECK
#define STRAGGLES(s, r) (version[V(s, r)].round == 0)
#else
#define STRAGGLES(s, r) (!STARTS_OVER(s, r) && version[V(s, r)].round != (r))
#endif
#ifdef MUTATE_NO_BITMAP
#define IS_IN(w, v) false
#else
#define IS_IN(w, v) IN(version[v].bitmap, 1 << (w))
#endif
#ifdef MUTATE_LATE_CONTRIBUTIONS
#define IS_CLOSED(w, v) IS_IN(w, v)
#else
#define IS_CLOSED(w, v) (version[v].complete || IS_IN(w, v))
#endif
#define IS_REPLAY(w, e, s, r) (version[V(s, r)].complete && IS_ASKED(w, e, s, r) && !IN(results[AT(w, e)], BIT(s, r)))
#ifdef MUTATE_NO_REPLAY
#undef IS_REPLAY
#define IS_REPLAY(w, e, s, r) false
#endif

/* Whether NORM or CODES changes anything when it arrives: it is added, or answered with something that is not under way. */
#ifdef MUTATE_NO_EPOCH_CHECK
#define IS_EPOCH(e) true
#else
#define IS_EPOCH(e) ((e) == epoch)
#endif
#define IS_TOLD(w, e) \
    (IN(unknown_job[w], 1 << (e)) || IN(stale_epoch[w], 1 << (e)) || worker[w].state != RUNNING || worker[w].epoch != (e))
#define IS_ASKED(w, e, s, r) (worker[w].epoch == (e) && worker[w].waiting[s] && worker[w].round[s] == (r))
/* Codes without a maximum norm ask for the result and are never added. */
#if QUORUM < N && !defined TWO_STREAM_SLOTS && !defined ONE_SLOT && !defined MUTATE_ABSTAINED_COUNT
#define ABSTAINS(w, e, s, r) ((s) == CODES && QUANTIZED(w, e, r) == 0)
#else
#define ABSTAINS(w, e, s, r) false
#endif
#ifdef MUTATE_ABSTAINED_COMPLETE
#define MAY_ADD(w, e, s, r) true
#else
#define MAY_ADD(w, e, s, r) (!ABSTAINS(w, e, s, r))
#endif
#define CHANGES_SLOT(w, e, s, r) \
    (STARTS_OVER(s, r) -> !ABSTAINS(w, e, s, r) : \
     ((STRAGGLES(s, r) && IS_ASKED(w, e, s, r) && !IN(stragglers[AT(w, e)], BIT(s, r))) \
      || (!STRAGGLES(s, r) && !IS_CLOSED(w, V(s, r)) && MAY_ADD(w, e, s, r)) \
      || (!STRAGGLES(s, r) && IS_REPLAY(w, e, s, r))))
#define IS_NEWS(w, e, s, r) \
    (IN(sent[AT(w, e)], BIT(s, r)) && \
     ((IS_EPOCH(e) && IN(joined, 1 << (w)) && CHANGES_SLOT(w, e, s, r)) || (!IS_EPOCH(e) && !IS_TOLD(w, e))))

/* Every packet there can be, as options of an `if`. */
#define EACH_ROUND_3(DO, w, e, s) DO(w, e, s, 1) DO(w, e, s, 2) DO(w, e, s, 3)
#define EACH_ROUND_4(DO, w, e, s) EACH_ROUND_3(DO, w, e, s) DO(w, e, s, 4)
#define EACH_ROUND_2(DO, w, e, s) DO(w, e, s, 1) DO(w, e, s, 2)
#define EACH_ROUND_1(DO, w, e, s) DO(w, e, s, 1)
#define PASTE(a, b) a##b
#define EACH_ROUND(n) PASTE(EACH_ROUND_, n)
#define EACH_SLOT(DO, w, e) EACH_ROUND(ROUNDS)(DO, w, e, 0) EACH_ROUND(ROUNDS)(DO, w, e, 1)
#define EACH_WORKER(DO, e) EACH_SLOT(DO, 0, e) EACH_SLOT(DO, 1, e) EACH_SLOT(DO, 2, e)
#ifdef MORTAL
#define EACH_CONTRIBUTION(DO) EACH_WORKER(DO, 0) EACH_WORKER(DO, 1) EACH_WORKER(DO, 2)
#else
#define EACH_CONTRIBUTION(DO) EACH_WORKER(DO, 0)
#endif

/* The process of worker w in epoch e, 1 + its number; what a message of that epoch was sent by. */
byte process_in[N * EPOCHS];

/* Variables of one atomic step. */
hidden byte w_, e_, s_, r_, v_, i_;

/* A worker drops what is not about the packet in flight; what it would drop is not put into the network, or taken out again. */
#ifdef MUTATE_ANY_ROUND_TAKEN
#define COULD_TAKE(w, s, r) true
#else
#define COULD_TAKE(w, s, r) \
    (worker[w].state <= RUNNING && (worker[w].round[s] < (r) || (worker[w].round[s] == (r) && worker[w].waiting[s])))
#endif

inline send_result_to(w) {
    if
    :: COULD_TAKE(w, s_, r_) -> results[AT(w, epoch)] = results[AT(w, epoch)] | BIT(s_, r_)
    :: else
    fi
}

/* LEFT_BEHIND. */
inline note_completed() {
#if QUORUM < N && !defined MORTAL
    completed = completed | BIT(s_, r_)
#else
    skip
#endif
}
inline check_left_behind(w, s) {
#if QUORUM < N && !defined MORTAL
    assert(IN(completed, BIT(s, worker[w].round[s])))
#else
    skip
#endif
}

/* EXACT and SAME: whenever a result is sent, the first time and later. */
inline check_result(v) {
    assert(!version[v].wrong && BITMAP(version[v].sum) == version[v].bitmap);
    assert(COUNT(version[v].sum) == version[v].contributions && version[v].contributions >= QUORUM);
    assert(RESULT(epoch, s_, r_) == 0 || RESULT(epoch, s_, r_) == version[v].sum);
    RESULT(epoch, s_, r_) = version[v].sum;
    note_completed()
}

inline start_over(v) {
    version[v].round = r_;
    version[v].bitmap = 0;
    version[v].contributions = 0;
    version[v].complete = false;
#ifndef MUTATE_NEVER_CLEARED
    version[v].sum = 0;
    version[v].norm = 0;
    version[v].wrong = false
#endif
}

inline add(v) {
    version[v].wrong = version[v].wrong || WHO(version[v].sum, w_) != 0 || version[v].round != r_ || e_ != epoch;
    if
    :: !ABSTAINS(w_, e_, s_, r_) -> version[v].sum = version[v].sum | (process_in[AT(w_, e_)] << (2 * w_))
    :: else
    fi;
#if !defined TWO_STREAM_SLOTS && !defined ONE_SLOT
    if
    :: s_ == CODES ->
        version[v].wrong = version[v].wrong || QUANTIZED(w_, e_, r_) == 0 ||
                           (version[v].norm != 0 && version[v].norm != QUANTIZED(w_, e_, r_));
        version[v].norm = QUANTIZED(w_, e_, r_)
    :: else
    fi;
#endif
    version[v].bitmap = version[v].bitmap | (1 << w_);
    version[v].contributions++;
    if
    :: version[v].contributions >= QUORUM -> /* to all workers */
        version[v].complete = true;
        check_result(v);
        if :: IN(joined, 1) -> send_result_to(0) :: else fi;
        if :: IN(joined, 2) -> send_result_to(1) :: else fi;
        if :: IN(joined, 4) -> send_result_to(2) :: else fi
    :: else
    fi
}

inline forget_slots() {
    v_ = 0;
    do
    :: v_ < SLOTS * 2 ->
        version[v_].round = 0; version[v_].bitmap = 0; version[v_].contributions = 0;
        version[v_].complete = false; version[v_].sum = 0; version[v_].norm = 0; version[v_].wrong = false;
        v_++
    :: else -> break
    od
}

inline forget_members() {
    member[0] = 0; member[1] = 0; member[2] = 0;
    joined = 0
}

inline refuse_epoch() {
    if
    :: e_ == superseded -> stale_epoch[w_] = stale_epoch[w_] | (1 << e_)
    :: else -> unknown_job[w_] = unknown_job[w_] | (1 << e_)
    fi
}

/* The table in "Slots". */
inline contribute() {
    v_ = V(s_, r_);
    if
    :: !IS_EPOCH(e_) -> refuse_epoch()
    :: else ->
        if
        :: STARTS_OVER(s_, r_) -> start_over(v_); add(v_)
        :: else ->
            if
            :: STRAGGLES(s_, r_) -> stragglers[AT(w_, e_)] = stragglers[AT(w_, e_)] | BIT(s_, r_)
            :: else ->
                if
                :: !IS_CLOSED(w_, v_) -> add(v_)
                :: else ->
                    check_result(v_);
                    send_result_to(w_)
                fi
            fi
        fi
    fi
}

/* "Joining". The server asks the process that it knows (PROBE), and lets another one in only when there is no answer. A worker
 * that left and comes back waits until no peer asks for results any more. */
#define IS_ALIVE(w) (member[w] == 1 + worker[w].process && (worker[w].state == RUNNING || worker[w].state == JOINING))
#define ASKS(w) (IN(joined, 1 << (w)) && worker[w].state == RUNNING && (worker[w].waiting[0] || worker[w].waiting[1]))
#ifdef MUTATE_RETURN_AT_ONCE
#define MUST_WAIT(w) (IN(joined, 1 << (w)) && IS_ALIVE(w))
#else
#define MUST_WAIT(w) (IN(joined, 1 << (w)) -> IS_ALIVE(w) : (ASKS(0) || ASKS(1) || ASKS(2)))
#endif
/* Where nothing dies (RETURNS), no HELLO may come so late that its process has joined already, or is gone: when the others have
 * begun anew meanwhile, it would join their job, and its successor would start that over (MUTATE_OLD_HELLOS). */
#if RETURNS > 0 && !defined MUTATE_OLD_HELLOS
#define MAY_ARRIVE(w, p) (worker[w].process == (p) && worker[w].state == JOINING)
#else
#define MAY_ARRIVE(w, p) true
#endif
#define IS_HELLO_NEWS(w, p) \
    (IN(hello[w], 1 << (p)) && MAY_ARRIVE(w, p) && \
     (epoch == NONE -> next_epoch < EPOCHS : \
      (member[w] == 0 || (member[w] == 1 + (p) && !IN(welcome[2 * (w) + (p)], 1 << epoch)) \
       || (member[w] != 1 + (p) && !MUST_WAIT(w) && next_epoch < EPOCHS))))

inline new_epoch() {
#ifdef MUTATE_EPOCH_COMES_BACK
    epoch = 0
#else
    epoch = next_epoch;
    next_epoch++
#endif
}

inline take_hello(w, p) {
    if
    :: epoch == NONE -> new_epoch()
    :: epoch != NONE && member[w] != 0 && member[w] != 1 + p ->
#ifndef MUTATE_RESTART_KEEPS_EPOCH
        superseded = epoch; /* the job starts over */
        new_epoch();
        forget_members();
        forget_slots()
#endif
    :: else
    fi;
    /* ONE_PROCESS */
    assert(process_in[AT(w, epoch)] == 0 || process_in[AT(w, epoch)] == 1 + p);
    process_in[AT(w, epoch)] = 1 + p;
    member[w] = 1 + p;
    joined = joined | (1 << w);
    welcome[2 * (w) + p] = welcome[2 * (w) + p] | (1 << epoch)
}

inline take_goodbye(w) {
    joined = joined & ~(1 << w);
    goodbye[w] = goodbye[w] & ~(1 << epoch);
#ifdef MUTATE_FIRST_GOODBYE_ENDS
    joined = 0;
#endif
    if
    :: joined == 0 -> /* the job is over */
        epoch = NONE;
        superseded = NONE;
        forget_members();
        forget_slots()
    :: else
    fi
}

#define IS_GOODBYE_NEWS(w) (epoch != NONE && IN(goodbye[w], 1 << epoch) && IN(joined, 1 << (w)))
#define PICK(w, e, s, r) :: IS_NEWS(w, e, s, r) -> w_ = w; e_ = e; s_ = s; r_ = r;

#ifndef SWITCH
active proctype Server() {
end:
    do
    :: atomic {
        if
        EACH_CONTRIBUTION(PICK)
        fi;
        contribute()
    }
    :: atomic { IS_HELLO_NEWS(0, 0) -> take_hello(0, 0) }
    :: atomic { IS_HELLO_NEWS(1, 0) -> take_hello(1, 0) }
    :: atomic { IS_HELLO_NEWS(2, 0) -> take_hello(2, 0) }
#ifdef MORTAL
    :: atomic { IS_HELLO_NEWS(0, 1) -> take_hello(0, 1) }
    :: atomic { IS_HELLO_NEWS(1, 1) -> take_hello(1, 1) }
    :: atomic { IS_HELLO_NEWS(2, 1) -> take_hello(2, 1) }
    :: atomic { IS_GOODBYE_NEWS(0) -> take_goodbye(0) }
    :: atomic { IS_GOODBYE_NEWS(1) -> take_goodbye(1) }
    :: atomic { IS_GOODBYE_NEWS(2) -> take_goodbye(2) }
#endif
#if SERVER_RESTARTS > 0
    :: atomic { restarts_left > 0 && epoch != NONE ->
        restarts_left--;
        something_died = true;
        epoch = NONE;
        superseded = NONE;
        forget_members();
        forget_slots()
    }
#endif
    od
}
#endif

/* ---- workers ("Worker") ---- */

/* ENDS: nobody fails for nothing. */
inline fail(w) {
    assert(something_died);
    worker[w].state = FAILED;
    forget_session(w)
}

inline forget_session(w) {
    worker[w].waiting[0] = false; worker[w].waiting[1] = false;
    worker[w].round[0] = 0; worker[w].round[1] = 0;
    worker[w].epoch = 0;
#ifdef MORTAL
    worker[w].lost = 0;
#endif
    i_ = 0;
    do
    :: i_ < SLOTS * ROUNDS -> worker[w].took[i_] = 0; i_++
    :: else -> break
    od;
    /* what was for this process finds nobody */
    unknown_job[w] = 0;
    stale_epoch[w] = 0;
    i_ = 0;
    do
    :: i_ < EPOCHS -> results[AT(w, i_)] = 0; stragglers[AT(w, i_)] = 0; i_++
    :: else -> break
    od
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

#ifdef ONE_SLOT /* slot 0 alone, of codes */
#define IS_USED(s) ((s) == 0)
#define MAY_BE_LEFT_BEHIND(s) (QUORUM < N || LOSS_TOLERANT)
#else
#define IS_USED(s) true
#define MAY_BE_LEFT_BEHIND(s) (QUORUM < N || (LOSS_TOLERANT && (s) == CODES))
#endif

/* Sends, or sends again in a new epoch, what is in flight in slot s. */
inline send(w, s) {
    sent[AT(w, worker[w].epoch)] = sent[AT(w, worker[w].epoch)] | BIT(s, worker[w].round[s]);
    if
    :: s == CODES ->
        QUANTIZED(w, worker[w].epoch, worker[w].round[s]) = TOOK(w, NORM, worker[w].round[s]);
#ifdef MUTATE_OWN_NORM
        if
        :: TOOK(w, NORM, worker[w].round[s]) == 0 ->
            QUANTIZED(w, worker[w].epoch, worker[w].round[s]) = PART(w, worker[w].process)
        :: else
        fi
#endif
#ifndef MORTAL
        TOOK(w, NORM, worker[w].round[s]) = !MAY_BE_LEFT_BEHIND(NORM) && TOOK(w, NORM, worker[w].round[s]) != 0
#endif
    :: else
    fi
}

#ifdef MUTATE_NEXT_ROUND_EARLY
#define IS_FREE(w, s) true
#else
#define IS_FREE(w, s) (!worker[w].waiting[s])
#endif
#ifdef TWO_STREAM_SLOTS /* packet number k of a stream of two slots */
#define IS_NEXT(w, s) ((s) == 0 -> worker[w].round[1] == worker[w].round[0] : worker[w].round[0] > worker[w].round[1])
#else /* codes wait for the maximum norm that they are quantized with; norms run ahead */
#if DEATHS > 0 && !defined MUTATE_NORMS_FAR_AHEAD /* less than two laps: who is left behind then lacks no one's codes */
#define MAY_RUN_AHEAD(w) (worker[w].round[NORM] <= worker[w].round[CODES])
#else
#define MAY_RUN_AHEAD(w) true
#endif
#define IS_NEXT(w, s) \
    ((s) == NORM -> MAY_RUN_AHEAD(w) : worker[w].round[NORM] > worker[w].round[CODES] + 1 \
     || (worker[w].round[NORM] == worker[w].round[CODES] + 1 && !worker[w].waiting[NORM]))
#endif
#define MAY_SEND(w, s) \
    (IS_USED(s) && worker[w].state == RUNNING && IS_FREE(w, s) && worker[w].round[s] < ROUNDS && IS_NEXT(w, s))

/* A result belongs to the packet in flight only if epoch, slot and round do; also to a worker that is joining again. */
#define HAS_RESULT(w, s, r) \
    (worker[w].state <= RUNNING && worker[w].waiting[s] && IN(results[AT(w, worker[w].epoch)], BIT(s, r)))
#define AGREES(u, s, r, sum) (TOOK(u, s, r) == 0 || TOOK(u, s, r) == (sum))

/* The packet in flight has its result, or none will come. */
inline release(w, s) {
    worker[w].waiting[s] = false;
#ifndef MUTATE_ANY_ROUND_TAKEN
    results[AT(w, worker[w].epoch)] = results[AT(w, worker[w].epoch)] & ~BIT(s, worker[w].round[s]);
#endif
    stragglers[AT(w, worker[w].epoch)] = stragglers[AT(w, worker[w].epoch)] & ~BIT(s, worker[w].round[s]);
    forget_result(s)
}

/* Keeps only what is compared later, so that there are fewer states. */
#define IS_PAST(w, s, r) (worker[w].round[s] > r || (worker[w].round[s] == r && !worker[w].waiting[s]))
inline forget_result(s) {
#ifndef MORTAL
    r_ = 1;
    do
    :: r_ <= ROUNDS ->
        if
        :: IS_PAST(0, s, r_) && IS_PAST(1, s, r_) && IS_PAST(2, s, r_) -> RESULT(0, s, r_) = 0
        :: else
        fi;
        r_++
    :: else -> break
    od
#else
    skip
#endif
}

inline take_result(w, s) {
    assert(r_ == worker[w].round[s]); /* EXACT */
#ifdef MORTAL
    i_ = RESULT(worker[w].epoch, s, r_);
    TOOK(w, s, r_) = i_;
    assert(AGREES(0, s, r_, i_) && AGREES(1, s, r_, i_) && AGREES(2, s, r_, i_)); /* SAME */
#else
    TOOK(w, s, r_) = (s == NORM -> RESULT(0, s, r_) : !MAY_BE_LEFT_BEHIND(CODES)); /* check_result has compared */
#endif
    release(w, s)
}

/* ENDS: with a result for everything, unless it may be left behind. */
inline check_has_all(w) {
    i_ = 0;
    do
    :: i_ < SLOTS * ROUNDS ->
        assert(worker[w].took[i_] != 0 || !IS_USED(i_ / ROUNDS) || MAY_BE_LEFT_BEHIND(i_ / ROUNDS));
        i_++
    :: else -> break
    od
}

#ifdef MUTATE_STRAGGLERS_IGNORED
#define IS_STRAGGLER(w, s) false
#else
#define IS_STRAGGLER(w, s) \
    (worker[w].state == RUNNING && worker[w].waiting[s] && IN(stragglers[AT(w, worker[w].epoch)], BIT(s, worker[w].round[s])))
#endif

/* A session that has all results only learns of it at its next call, of which there is none. */
#define IS_REFUSED(w, errors) (worker[w].state == RUNNING && !IS_DONE(w) && IN(errors[w], 1 << worker[w].epoch))

inline rejoin(w) {
    unknown_job[w] = 0;
#ifdef MORTAL
    worker[w].lost = worker[w].lost | (1 << worker[w].epoch);
#endif
#ifdef MUTATE_QUORUM_REJOINS
    say_hello(w)
#else
    if
    :: QUORUM < N -> fail(w) /* "Joining": rounds of a quorum cannot be repeated */
    :: else -> say_hello(w)
    fi
#endif
}

inline take_welcome(w, e) {
    worker[w].state = RUNNING;
    worker[w].epoch = e;
    if :: worker[w].waiting[0] -> send(w, 0) :: else fi;
    if :: worker[w].waiting[1] -> send(w, 1) :: else fi
}

#if defined MORTAL && !defined MUTATE_LATE_WELCOME
#define IS_LOST(w, e) IN(worker[w].lost, 1 << (e))
#else
#define IS_LOST(w, e) false
#endif
#define IS_WELCOME(w, e) \
    (worker[w].state == JOINING && IN(welcome[2 * (w) + worker[w].process], 1 << (e)) && !IS_LOST(w, e))

proctype Worker(byte w) {
    atomic { say_hello(w) };
end_waiting:
    do
    :: atomic { IS_WELCOME(w, 0) -> take_welcome(w, 0) }
#ifdef MORTAL
    :: atomic { IS_WELCOME(w, 1) -> take_welcome(w, 1) }
    :: atomic { IS_WELCOME(w, 2) -> take_welcome(w, 2) }
    :: atomic { IS_REFUSED(w, stale_epoch) -> fail(w) }
    :: atomic { IS_REFUSED(w, unknown_job) -> rejoin(w) }
#endif
    :: atomic { MAY_SEND(w, 0) -> worker[w].round[0]++; worker[w].waiting[0] = true; send(w, 0) }
#ifdef MUTATE_ABSTAINED_UNSENT
    :: atomic { MAY_SEND(w, 1) && TOOK(w, NORM, worker[w].round[1] + 1) == 0 -> worker[w].round[1]++ }
    :: atomic { MAY_SEND(w, 1) && TOOK(w, NORM, worker[w].round[1] + 1) != 0 ->
        worker[w].round[1]++; worker[w].waiting[1] = true; send(w, 1) }
#else
    :: atomic { MAY_SEND(w, 1) -> worker[w].round[1]++; worker[w].waiting[1] = true; send(w, 1) }
#endif
#ifdef MUTATE_ANY_ROUND_TAKEN
    :: atomic { HAS_RESULT(w, 0, 1) -> r_ = 1; take_result(w, 0) }
    :: atomic { HAS_RESULT(w, 1, 1) -> r_ = 1; take_result(w, 1) }
#endif
    :: atomic { HAS_RESULT(w, 0, worker[w].round[0]) -> r_ = worker[w].round[0]; take_result(w, 0) }
    :: atomic { HAS_RESULT(w, 1, worker[w].round[1]) -> r_ = worker[w].round[1]; take_result(w, 1) }
    :: atomic { IS_STRAGGLER(w, 0) -> check_left_behind(w, 0); if :: MAY_BE_LEFT_BEHIND(0) -> release(w, 0) :: else -> fail(w) fi }
    :: atomic { IS_STRAGGLER(w, 1) -> check_left_behind(w, 1); if :: MAY_BE_LEFT_BEHIND(1) -> release(w, 1) :: else -> fail(w) fi }
#if LOSS_TOLERANT
    :: atomic { worker[w].state == RUNNING && worker[w].waiting[CODES] -> release(w, CODES) } /* given up */
#ifdef ONE_SLOT
    :: atomic { worker[w].state == RUNNING && worker[w].waiting[0] -> release(w, 0) }
#endif
#endif
#if LOSSES > 0
    :: atomic { losses_left > 0 && HAS_RESULT(w, 0, worker[w].round[0]) ->
        losses_left--;
        results[AT(w, worker[w].epoch)] = results[AT(w, worker[w].epoch)] & ~BIT(0, worker[w].round[0])
    }
    :: atomic { losses_left > 0 && HAS_RESULT(w, 1, worker[w].round[1]) ->
        losses_left--;
        results[AT(w, worker[w].epoch)] = results[AT(w, worker[w].epoch)] & ~BIT(1, worker[w].round[1])
    }
#endif
    :: atomic { worker[w].state == RUNNING && IS_DONE(w) ->
        check_has_all(w);
        goodbye[w] = goodbye[w] | (1 << worker[w].epoch);
        worker[w].state = LEFT
    }
#if RETURNS > 0
    :: atomic { returns_left > 0 && worker[w].state == LEFT && worker[w].process + 1 < PROCESSES && !IS_GOODBYE_NEWS(w) -> returns_left--; start_again(w) }
#endif
#if DEATHS > 0
    :: atomic { deaths_left > 0 && worker[w].state <= RUNNING -> deaths_left--; worker[w].state = FAILED; forget_session(w) }
#endif
#if CRASHES > 0
    :: atomic { crashes_left > 0 && worker[w].state <= RUNNING && worker[w].process + 1 < PROCESSES ->
        crashes_left--; something_died = true; start_again(w) }
    :: atomic { worker[w].state == FAILED && worker[w].process + 1 < PROCESSES -> start_again(w) }
#endif
    :: atomic { timeout && worker[w].state <= RUNNING -> fail(w) } /* its deadline */
    od
}

#ifdef SWITCH
#include "switch.pml"
#endif

init {
    atomic { run Worker(0); run Worker(1); run Worker(2) }
}
