/* The aggregator as the P4 programs are it (p4/README.md, "The passes of a packet"; p4/programs/include/verdict.p4, next_pass.p4,
 * result.p4): a contribution goes through its passes one by one, packets one behind the other (`recirculation`). Two passes here, of
 * eight; PASS_LOSSES of the packets may be lost between two passes. One job, whose members never change.
 */

#define PASSES 2
#ifndef PASS_LOSSES
#define PASS_LOSSES 0
#endif
#define IN_FLIGHT 4 /* packets in the recirculation queue, at most */

/* Steps. */
#define WRITE 1
#define ADD 2
#define SKIP 3      /* a replay: only strips the payload */
#define READ 4      /* collect the rows for all workers */
#define READ_ONE 5  /* for the sender */
#define FINISH 6
#define FINISH_ONE 7

byte highest_round[SLOTS];
byte slot_use[SLOTS * 2];  /* its round; 0: never used */
byte worker_bitmap[SLOTS * 2];
byte finished_round[SLOTS * 2], finished[SLOTS * 2];
/* The sum registers, a row for each pass, and what was really added to them. */
byte row[PASSES * SLOTS * 2];
byte row_norm[PASSES * SLOTS * 2];
bool row_wrong[PASSES * SLOTS * 2];
byte row_round[PASSES * SLOTS * 2];
#define ROW(pass, v) (((v) * PASSES) + (pass) - 1)
byte pass_losses_left = PASS_LOSSES;

/* step, pass, worker, slot, round, and what was collected: rows 2 and 1, whether any is wrong */
chan recirculation = [IN_FLIGHT] of { byte, byte, byte, byte, byte, byte, byte, byte };

hidden byte step_, pass_, got2_, got1_, x_, wrong_;

#define ONES(b) (((b) & 1) + (((b) >> 1) & 1) + (((b) >> 2) & 1))
#ifdef MUTATE_NO_ROOM_CHECK
#define HAS_ROOM(v) true
#else
#define HAS_ROOM(v) (ONES(worker_bitmap[v]) < QUORUM)
#endif
#define IS_FINISHED(s, r) (finished_round[V(s, r)] == (r) && finished[V(s, r)] >= QUORUM)
/* CHECK, as IS_NEWS for thc-ps. */
#define IS_STALE(s, r) ((r) < highest_round[s])
#define IS_REPLAY_DUE(w, s, r) (IS_FINISHED(s, r) && IS_ASKED(w, 0, s, r) && !IN(results[w], BIT(s, r)) && !IN(replaying, 1 << (w)))
#define IS_CHECK_NEWS(w, s, r) \
    (len(recirculation) < IN_FLIGHT - 1 && IN(sent[w], BIT(s, r)) && \
     (slot_use[V(s, r)] == (r) -> \
      (IS_FINISHED(s, r) -> IS_REPLAY_DUE(w, s, r) : (!IN(worker_bitmap[V(s, r)], 1 << (w)) && HAS_ROOM(V(s, r)))) : \
      (!IS_STALE(s, r) || (IS_ASKED(w, 0, s, r) && !IN(stragglers[w], BIT(s, r))))))
byte replaying; /* workers whose replay is under way: one at a time, or a worker that asks would fill the queue */
#define PICK_CHECK(w, e, s, r) :: IS_CHECK_NEWS(w, s, r) -> w_ = w; s_ = s; r_ = r;

/* The first pass: the truth table of verdict.p4. */
inline check_slot() {
    v_ = V(s_, r_);
    step_ = 0;
    if
    :: slot_use[v_] == r_ ->
        if
        :: IS_FINISHED(s_, r_) -> step_ = SKIP; replaying = replaying | (1 << w_)
        :: else -> step_ = ADD; worker_bitmap[v_] = worker_bitmap[v_] | (1 << w_)
        fi
    :: else ->
        if
        :: IS_STALE(s_, r_) -> stragglers[w_] = stragglers[w_] | BIT(s_, r_)
        :: else ->
            highest_round[s_] = r_;
            slot_use[v_] = r_;
            worker_bitmap[v_] = 1 << w_;
            finished_round[v_] = r_;
            finished[v_] = 0;
            step_ = WRITE
        fi
    fi;
#ifdef MUTATE_FINISHED_AT_CHECK
    if :: step_ == WRITE || step_ == ADD -> finished[v_]++ :: else fi;
#endif
    if :: step_ != 0 -> recirculation ! step_, 1, w_, s_, r_, 0, 0, 0 :: else fi
}

/* A pass with a row: the sums. */
inline add_to_row() {
    x_ = ROW(pass_, v_);
    if
    :: step_ == WRITE -> row[x_] = 0; row_norm[x_] = 0; row_wrong[x_] = false; row_round[x_] = r_
    :: else
    fi;
    row_wrong[x_] = row_wrong[x_] || WHO(row[x_], w_) != 0 || row_round[x_] != r_;
    row[x_] = row[x_] | PART(w_, 0);
    if
    :: s_ == CODES && QUANTIZED(w_, 0, r_) != 0 ->
        row_wrong[x_] = row_wrong[x_] || (row_norm[x_] != 0 && row_norm[x_] != QUANTIZED(w_, 0, r_));
        row_norm[x_] = QUANTIZED(w_, 0, r_)
    :: else
    fi
}

/* The last ascending pass: one more is finished; the last of the quorum turns round to collect (next_pass.p4). */
inline finish_contribution() {
    if
    :: finished_round[v_] == r_ ->
#ifndef MUTATE_FINISHED_AT_CHECK
        finished[v_]++;
#endif
        if
        :: finished[v_] == QUORUM -> recirculation ! READ, PASSES, w_, s_, r_, 0, 0, 0
        :: else /* absorbed */
        fi
    :: else /* its version has gone to a later round */
    fi
}

/* EXACT and SAME: the rows that were collected are sums of the same contributions of this round, each once. */
inline finish() {
    if
#ifdef MUTATE_NO_FINISH_CHECK
    :: true ->
#else
    :: slot_use[v_] == r_ ->
#endif
        assert(!wrong_ && got1_ == got2_ && COUNT(got1_) >= QUORUM && COUNT(got1_) == finished[v_]);
        assert(RESULT(0, s_, r_) == 0 || RESULT(0, s_, r_) == got1_);
        RESULT(0, s_, r_) = got1_;
        note_completed();
        if
        :: step_ == FINISH -> send_result_to(0); send_result_to(1); send_result_to(2)
        :: else -> send_result_to(w_)
        fi;
        forget_result(s_)
    :: else /* overwritten meanwhile */
    fi
}

inline next_pass() {
    recirculation ? step_, pass_, w_, s_, r_, got2_, got1_, wrong_;
    v_ = V(s_, r_);
    if
    :: step_ == WRITE || step_ == ADD ->
        add_to_row();
        if
        :: pass_ < PASSES -> recirculation ! (step_ == WRITE -> WRITE : ADD), pass_ + 1, w_, s_, r_, 0, 0, 0
        :: else -> finish_contribution()
        fi
    :: step_ == SKIP ->
        if
        :: pass_ < PASSES -> recirculation ! SKIP, pass_ + 1, w_, s_, r_, 0, 0, 0
        :: else -> recirculation ! READ_ONE, PASSES, w_, s_, r_, 0, 0, 0
        fi
    :: step_ == READ || step_ == READ_ONE ->
        x_ = ROW(pass_, v_);
        wrong_ = wrong_ || row_wrong[x_] || row_round[x_] != r_;
        if
        :: pass_ == 2 -> recirculation ! step_, 1, w_, s_, r_, row[x_], 0, wrong_
        :: else -> recirculation ! (step_ == READ -> FINISH : FINISH_ONE), 0, w_, s_, r_, got2_, row[x_], wrong_
        fi
    :: step_ == FINISH || step_ == FINISH_ONE ->
        finish();
        if :: step_ == FINISH_ONE -> replaying = replaying & ~(1 << w_) :: else fi
    fi
}

/* The agent: it opens the job, and everybody joins. */
active proctype Switch() {
    atomic {
        process_in[0] = 1; process_in[1] = 1; process_in[2] = 1;
        epoch = 0; joined = 7;
        welcome[0] = 1; welcome[2] = 1; welcome[4] = 1
    };
end:
    do
    :: atomic {
        if
        EACH_CONTRIBUTION(PICK_CHECK)
        fi;
        check_slot()
    }
    :: atomic { nempty(recirculation) -> next_pass() }
#ifdef MUTATE_OVERTAKING /* a shorter packet: the first in the queue is passed by the next */
    :: atomic { len(recirculation) > 1 ->
        recirculation ? step_, pass_, w_, s_, r_, got2_, got1_, wrong_;
        recirculation ! step_, pass_, w_, s_, r_, got2_, got1_, wrong_ }
#endif
    :: atomic { pass_losses_left > 0 && nempty(recirculation) ->
        recirculation ? step_, pass_, w_, s_, r_, got2_, got1_, wrong_;
        pass_losses_left--;
        something_died = true;
        if :: step_ == SKIP || step_ == READ_ONE || step_ == FINISH_ONE -> replaying = replaying & ~(1 << w_) :: else fi }
    od
}
