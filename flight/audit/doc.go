// Package audit records which caller read, wrote or dropped which data: a file of JSON
// lines, rotated by size. It knows what an event is, and nothing of Flight or of rules.
//
// A write is on stable storage when [Log.Write] returns. A read is recorded twice, when
// it begins and when it has ended. The kernel has the beginning when [Log.Begin] returns,
// so it outlives the process, or stable storage has it, with Options.SyncReads; the end
// never waits ([Log.Read]). Both go through a bounded queue, and what the queue has no
// room for is counted, and the count recorded.
package audit
