// Package scheduler is the SDK for scheduling plugins: programs that decide what
// a run may leave to others. A plugin is a main package of a few lines:
//
//	type mine struct{ scheduler.Base }
//
//	func (mine) Info() scheduler.Info { return scheduler.Info{Name: "mine", Version: "1.0.0"} }
//
//	func (mine) Arrange(ctx context.Context, q scheduler.ArrangeRequest) ([]runner.Sample, error) {
//		return scheduler.First(q), nil
//	}
//
//	func main() { scheduler.Serve(mine{}) }
//
// # What a plugin may decide
//
// Each ability is an interface of its own, and optional: what a plugin does not
// implement, the built-in does.
//
//   - [Arranger]: the order of an epoch's samples, a horizon at a time.
//   - [Assigner]: which free target makes the lowest unproduced row.
//   - [Placer]: which device every worker runs on.
//   - [FailureJudge]: whether a dead worker is restarted, replaced, or ends the run.
//   - [Observer]: nothing; it is told what happens.
//
// The warm-up gate and which drafter trains a row are not a plugin's to decide.
//
// # How a plugin lives
//
//  1. The host starts the program that its catalog names, after it checked the
//     sha256 of every file that runs, in a directory of its own, with an
//     environment made from nothing. Connections are mutual TLS over a socket.
//  2. Info is asked, then the schema of the configuration. The host checks the
//     configuration against the schema, fills in defaults, and calls Configure,
//     once. Nothing else is asked before that.
//  3. Questions come, several at a time and from any goroutine. Each has a deadline
//     in its ctx; an answer that comes later goes nowhere.
//  4. Serve returns when the host says so, or is gone.
//
// The host may end and start a plugin at any time, so a request carries all that
// its answer needs and a plugin should keep nothing that it cannot do without.
// An arrangement is journaled: a resumed run does not ask for it again.
//
// # Placing
//
// Place is asked once a start of the run, before any worker starts; also where
// there is no GPU: the one device is "cpu" then, and workers share it. Devices are
// those that the configuration allows and nobody else uses. Needs are what the
// plan reckons, in bytes on the device. Health is unknown at the start, as nothing
// has watched the GPUs yet; links tell of peer access, and of no measured speed.
// Two drafters on one GPU are refused, for they cannot sum their gradients there.
// A resumed run asks anew, and says where workers start on other devices.
//
// # Deaths
//
// OnFailure is asked about a death that the restart policy bears. The policy does
// not wait for the answer: its backoff runs meanwhile, and when it is over before
// a verdict came the worker is started again where it was.
//
//   - Restart leaves all to the policy.
//   - Replace starts the next life, after the backoff, on one of q.Devices: GPUs
//     without a worker that have room, work, and reach what they must. There is none
//     on a CPU, and none for a target whose rows lie on its own GPU. Too late, it
//     changes nothing. A worker whose GPU is not used again fails at the end of its
//     backoff unless it is replaced by then.
//   - Stop ends the run after a checkpoint of the newest state that is there, with
//     exit code 1 as workers.on_failure: stop does; the verdict's reason, one line of
//     at most 500 bytes, stands in exit_reason. It holds also when the worker was
//     started again meanwhile.
//
// The policy alone decides where restarts are spent, forbidden or of no use, and
// while the plugin is quarantined.
//
// # Events
//
// An [Observer] is told of every event of the run from its start on, those that
// events.jsonl has, in order and each once: what happened before it was started is
// told first. Numbers count the run's events from 1; a gap in them is what was lost:
// some hundreds wait for a plugin that does not keep up, and more are dropped, as are
// those of the time in which it is quarantined. At the end what waits is still told,
// within two seconds. Observing costs no strikes.
//
// # Losses
//
// [Source].Loss is an exponential mean over the last 32 steps or so that trained
// the source: each such step leaves 31/32 of the weight of those before it. Steps
// weigh by their trained labels. A row has one loss, and may hold samples of
// several sources: each takes the row's loss, weighted by its share of the row's
// anchors, so what a source shares rows with shows in its figure. It is absent
// until the source was trained on, goes back with the run when a checkpoint is
// restored, and is there again after a resume.
//
// # Arranging
//
// Arrange is asked ahead of need, while there are rows for a quarter of a
// horizon left, so that no step waits for the answer. It is shown the first
// samples of the epoch that were not given yet, in the built-in's order: as many
// as scheduler.pool says (1024 where it says nothing; four times Count, where
// that is more; 262,144 at most). What it does not choose stands there the next
// time. A plugin that must see a whole epoch, as one that sorts it does, wants a
// pool of that size: it costs about a microsecond for every four samples.
//
// # What the host does about answers
//
// Every answer is checked: a sample that is not in the pool or comes twice, one
// that is missing, a target that is not free, an unknown device, two workers on
// one device where that is not asked for. A bad answer, an error and a late answer
// are the same to a run: the built-in answers instead, a strike is counted and
// shown by `status` and `health`. Too many strikes end the program; it is started
// again after a wait that doubles. So a plugin can make a run slower or better,
// and never wrong.
//
// An [Error] tells the host why a plugin gives no answer; any other error is of
// kind internal. So is a panic: it is the end of its question alone, and its trace
// goes to the log.
//
// # What a plugin holds
//
// A run looks every few seconds at what the plugin's process holds: its resident
// memory and its threads, as the kernel counts them, and its goroutines, which Serve
// tells where Info offers Vitals. A plugin that holds more than scheduler.limits says
// is ended, as one with too many strikes is; status shows the figures. The test kit
// finds one that leaves something behind with every question.
//
// # How questions travel
//
// Serve sees to this; it concerns who writes an SDK. Arrange and Assign are asked
// often, and a call costs twice what a message on an open stream does. Where Info
// offers Ask, the host opens a stream for each of the two with its first question,
// and asks one question at a time on it; one that comes meanwhile is asked by a
// call, as all are where Info does not offer it. An answer carries its question's
// number, which is drawn. A stream is dropped when its answer is late, when it
// breaks, and when it brings another number or a reply of another kind; the next
// question opens another. What nobody asked for is found, and is a strike, when
// the next question is asked. `dflash-runner plugins describe` says which way a
// plugin is asked.
//
// On a stream, a pool comes as columns: lists of numbers of one width, which are
// copied and not read one by one. The order goes back packed likewise. By a call
// both are lists. An SDK that answers Ask reads columns; it may answer with either.
//
// # Printing
//
// Stdout belongs to the handshake: whole lines that are printed there before
// Serve are skipped, a part of one spoils the handshake, and what comes after it
// goes to the plugin's log, as stderr does. Log to stderr.
//
// # Versions
//
// [APIVersion] is the version of the questions. Messages are only added to, so an
// older plugin keeps working; the host uses the highest version both speak.
//
// Package schedulertest proves that a program keeps this contract.
package scheduler
