/* Two trainings with one job number (docs/contributors/protocol.md, "Which training") as a model. protocol.pml has the rest of the protocol,
 * and says what the network here is: a set of messages, each of which arrives at any time, any number of times, or never.
 *
 *   CRASHES       a configuration: processes that end without GOODBYE
 *   MUTATE_...    one rule left out, which must be found
 *
 * Two trainings of two workers each, one process a worker, one round of one slot.
 *
 * What is checked:
 *   ONE_TRAINING  those in a job, and those in a sum, are of one training.
 *   NOT_EVICTED   a living process does not lose its place to another training.
 *   REFUSED       who is refused is so because another training's process in the job lives.
 *   ENDS          every process ends with a result, unless a process died, or the other one of its training gave up when it
 *                 was refused.
 */

#ifndef CRASHES
#define CRASHES 0
#endif
#define EPOCHS 4
#define NONE EPOCHS
#define AT(w, t) (2 * (w) + (t)) /* worker, training */
#define EPOCH(e) (1 << (e))
#define IN(set, element) (((set) & (element)) != 0)

/* ---- the network: for each process, or to it ---- */
byte hello[4];   /* 1: it has said so */
byte welcome[4]; /* epochs */
byte sent[4];    /* its contribution in epochs */
byte result[4];  /* to it in epochs */
byte refused[4]; /* ERROR other_training to it */
byte goodbye[4]; /* epochs */
byte lost[4];    /* ERROR stale_epoch or unknown_job about epochs */

#define JOINING 0
#define RUNNING 1
#define DONE 2
#define GAVE_UP 3
#define DEAD 4
#define FAILED 5
byte state[4], epoch_of[4];
bool something_died;
byte crashes_left = CRASHES;

/* ---- the server ---- */
byte epoch = NONE, next_epoch, job_run;
byte member[2]; /* 0, or 1 + the training of the process that has this place */
byte gone[2];   /* trainings whose process said GOODBYE or was replaced: their HELLO is dropped */
byte sum[2];    /* likewise, whose contribution is in the slot */

#define LIVES(w, t) (state[AT(w, t)] == JOINING || state[AT(w, t)] == RUNNING)
#define IS_EMPTY (member[0] == 0 && member[1] == 0)
#define MEMBER_LIVES(w) (member[w] != 0 && LIVES(w, member[w] - 1))
#ifdef MUTATE_ONE_IS_SILENT
#define ALL_SILENT ((member[0] != 0 && !MEMBER_LIVES(0)) || (member[1] != 0 && !MEMBER_LIVES(1)))
#else
#define ALL_SILENT (!MEMBER_LIVES(0) && !MEMBER_LIVES(1))
#endif
#if defined MUTATE_NO_RUN
#define IS_OTHER(w, t) false
#elif defined MUTATE_OWN_PLACE_ONLY
#define IS_OTHER(w, t) (!IS_EMPTY && member[w] != 0 && job_run != (t))
#else
#define IS_OTHER(w, t) (!IS_EMPTY && job_run != (t))
#endif
#define IS_OVER(w, t) (IS_OTHER(w, t) && ALL_SILENT)
#define HAS_PLACE(w, t) (member[w] == 1 + (t))
#define IS_HELLO_NEWS(w, t) \
    (hello[AT(w, t)] && !IN(gone[w], 1 << (t)) && \
     (IS_OTHER(w, t) && !ALL_SILENT -> !refused[AT(w, t)] && LIVES(w, t) : \
      (HAS_PLACE(w, t) -> !IN(welcome[AT(w, t)], EPOCH(epoch)) : \
       (member[w] == 0 || IS_OVER(w, t)) && (next_epoch < EPOCHS || (epoch != NONE && !IS_OVER(w, t))))))

inline begin_job() {
    epoch = next_epoch;
    next_epoch++;
    sum[0] = 0; sum[1] = 0
}

inline leave_for_good(w) {
    if :: member[w] != 0 -> gone[w] = gone[w] | (1 << (member[w] - 1)); member[w] = 0 :: else fi
}

inline take_hello(w, t) {
    if
    :: IS_OTHER(w, t) && !ALL_SILENT ->
        assert(MEMBER_LIVES(0) || MEMBER_LIVES(1)); /* REFUSED */
        refused[AT(w, t)] = 1
    :: else ->
        if
        :: IS_OVER(w, t) -> /* the job starts over, and is the newcomer's */
            assert(!MEMBER_LIVES(0) && !MEMBER_LIVES(1)); /* NOT_EVICTED */
            leave_for_good(0);
            leave_for_good(1);
            begin_job();
#ifndef MUTATE_RUN_KEPT
            job_run = t
#endif
        :: else ->
            if
            :: epoch == NONE -> begin_job(); job_run = t
            :: else
            fi
        fi;
        member[w] = 1 + t;
        assert(member[1 - (w)] == 0 || member[1 - (w)] == 1 + t); /* ONE_TRAINING */
        welcome[AT(w, t)] = welcome[AT(w, t)] | EPOCH(epoch)
    fi
}

#define IS_CURRENT(w, t) (HAS_PLACE(w, t) && epoch != NONE && IN(sent[AT(w, t)], EPOCH(epoch)))
#define IS_NEWS(w, t) \
    (IS_CURRENT(w, t) && (sum[w] == 0 || (sum[1 - (w)] != 0 && !IN(result[AT(w, t)], EPOCH(epoch)))))

inline contribute(w, t) {
    sum[w] = 1 + t;
    if
    :: sum[1 - (w)] != 0 ->
        assert(sum[0] == sum[1]); /* ONE_TRAINING */
        if :: member[0] != 0 -> result[AT(0, member[0] - 1)] = result[AT(0, member[0] - 1)] | EPOCH(epoch) :: else fi;
        if :: member[1] != 0 -> result[AT(1, member[1] - 1)] = result[AT(1, member[1] - 1)] | EPOCH(epoch) :: else fi
    :: else
    fi
}

/* A worker that asks in an epoch that is over. */
#define IS_LOST(w, t) \
    (state[AT(w, t)] == RUNNING && epoch_of[AT(w, t)] != epoch && !IN(lost[AT(w, t)], EPOCH(epoch_of[AT(w, t)])))
#define IS_GOODBYE_NEWS(w, t) (HAS_PLACE(w, t) && epoch != NONE && IN(goodbye[AT(w, t)], EPOCH(epoch)))

inline take_goodbye(w) {
    leave_for_good(w);
    if :: IS_EMPTY -> epoch = NONE; sum[0] = 0; sum[1] = 0 :: else fi
}

#define SERVE(w, t) \
    :: atomic { IS_HELLO_NEWS(w, t) -> take_hello(w, t) } \
    :: atomic { IS_NEWS(w, t) -> contribute(w, t) } \
    :: atomic { IS_LOST(w, t) -> lost[AT(w, t)] = lost[AT(w, t)] | EPOCH(epoch_of[AT(w, t)]) } \
    :: atomic { IS_GOODBYE_NEWS(w, t) -> take_goodbye(w) }

active proctype Server() {
end:
    do
    SERVE(0, 0) SERVE(0, 1) SERVE(1, 0) SERVE(1, 1)
    od
}

#define ME AT(w, t)
#define IS_WELCOME(e) (state[ME] == JOINING && IN(welcome[ME], EPOCH(e)))
#define JOIN(e) \
    :: atomic { IS_WELCOME(e) -> state[ME] = RUNNING; epoch_of[ME] = e; sent[ME] = sent[ME] | EPOCH(e) }

proctype Worker(byte w; byte t) {
    atomic { hello[ME] = 1 };
end_waiting:
    do
    JOIN(0) JOIN(1) JOIN(2) JOIN(3)
    :: atomic { state[ME] == JOINING && refused[ME] -> state[ME] = GAVE_UP }
    :: atomic { state[ME] == JOINING && refused[ME] -> refused[ME] = 0 } /* it goes on saying HELLO */
    :: atomic { state[ME] == RUNNING && IN(result[ME], EPOCH(epoch_of[ME])) ->
        goodbye[ME] = goodbye[ME] | EPOCH(epoch_of[ME]);
        state[ME] = DONE }
    :: atomic { state[ME] == RUNNING && IN(lost[ME], EPOCH(epoch_of[ME])) -> assert(something_died); state[ME] = FAILED }
#if CRASHES > 0
    :: atomic { crashes_left > 0 && LIVES(w, t) -> crashes_left--; something_died = true; state[ME] = DEAD }
#endif
    :: atomic { timeout && LIVES(w, t) -> /* its deadline */
        assert(something_died || state[AT(1 - w, t)] == GAVE_UP); /* ENDS */
        state[ME] = FAILED }
    od
}

init {
    atomic { run Worker(0, 0); run Worker(1, 0); run Worker(0, 1); run Worker(1, 1) }
}
