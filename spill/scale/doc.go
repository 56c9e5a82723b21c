// Package scale moves the budget of a cache while it is used: up while it pays and disk and memory allow, down when
// others need them.
//
// A [Scaler] looks every few seconds at the disk, at memory, at what consumers waited for, and at the plans of the
// jobs that run. The first of these rules that has something to say decides; the [Decision] says which, why, and by
// what figures.
//
//   - limits: a budget outside of its limits is moved inside them.
//   - disk: if less is free than is to be left, or will be at the next decision should the others go on as they did
//     since the last one, the budget shrinks at once to what leaves it, and a reserve besides. A full disk stops
//     the others' programs, and a cache only saves time. But to what has not happened yet it gives up no more than
//     a quarter of what it holds. What others take is the fall of free space and the cache's own, so that the cache
//     does not run away from itself.
//   - memory: with less than 5 % available the budget shrinks by a 32nd of what is held. Space that is given back
//     takes its mapped pages along at once, while pages that are in use leave slowly by themselves. But it is the
//     disk that most blobs are on, so this goes slowly.
//   - tight: if what is free is within the reserve of what is to be left, and a smaller cache would have the same
//     hits, as no job that runs would use the rest, the budget shrinks by an eighth. While there is room, such a
//     cache is kept: it costs nothing, and a job may come back.
//   - grow: the budget grows to one and a half times at most, if all of this holds. Consumers waited for the store
//     for 5 % of the time at least, or more hits would make nobody faster. Bytes come from the store, or the
//     cache's own disk is what is waited for. What there is, is full. Ten percent of memory are available, as hits
//     are served from mapped files. The disk keeps twice the reserve besides what is to be left. Nothing had to
//     shrink of late. And by the forecast all that it can still grow to would raise the share of hits by 2 points
//     at least.
//   - hold: otherwise, and the reason says which of these is missing.
//
// What growing has to leave is more than what makes the budget shrink, in each rule, so that under conditions that
// stay the same the budget comes to rest.
//
// The forecast is a trace of what the jobs that run will ask for, scaled down: of some thousand positions drawn at
// random, the same for all jobs on a dataset, the plans say who uses them when, in the present epoch, the one
// before, and the next ones as far as they are known. So jobs with one seed, with overlapping selections, or about
// to end count for what they are. A dataset gets positions by its bytes, so each stands for as many. It is replayed
// with the optimum ([replay.Trace.OptimumFrom]), which eviction by next use comes within 1.5 % of at a hundredth of
// the time; with another policy it is the most there is to gain.
package scale
