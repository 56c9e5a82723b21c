package audit

import "time"

// The kinds of events.
const (
	Read    = "read"    // rows, or data about them, went to the caller
	Write   = "write"   // a snapshot is committed
	Alter   = "alter"   // rows or columns of a dataset are changed, by a snapshot
	Select  = "select"  // a selection is saved
	Drop    = "drop"    // a snapshot or a dataset is dropped
	Tag     = "tag"     // a snapshot is named
	Untag   = "untag"   // a name is removed
	Steer   = "steer"   // weights of a run are changed
	Collect = "collect" // garbage is collected
	Cancel  = "cancel"  // streams are ended
	Measure = "measure" // rates of store and disks are measured, or set
	Deny    = "deny"    // the rules refused a call
	Dropped = "dropped" // reads were not recorded; their number is Event.Count
)

// Phases of a change: one event before it and one after it. A Begin without another phase
// means that the server ended in between.
const (
	Begin  = "begin"
	Done   = "done"
	Failed = "failed"
)

// Event is a line of the log. It has no secrets: no token, ticket, expression, cell or
// header. docs/formats.md describes the fields. Figures are absent if they are unknown.
type Event struct {
	Time      time.Time `json:"time"`
	Event     string    `json:"event"`
	Phase     string    `json:"phase,omitempty"`
	Method    string    `json:"method,omitempty"` // the RPC, and of DoAction the action: DoGet, DoAction/drop
	Call      uint64    `json:"call,omitempty"`   // the same in all lines of a call
	Principal string    `json:"principal"`
	Tenant    string    `json:"tenant,omitempty"`
	Peer      string    `json:"peer,omitempty"`
	Trace     string    `json:"trace,omitempty"`
	Dataset   string    `json:"dataset,omitempty"`
	Snapshot  int64     `json:"snapshot,omitempty"` // 0: all of the dataset, or not known
	Tag       string    `json:"tag,omitempty"`
	Plan      string    `json:"plan,omitempty"`
	Run       string    `json:"run,omitempty"`
	Step      int64     `json:"step,omitempty"` // first step of a run with changed weights
	Rule      string    `json:"rule,omitempty"` // the rule that granted it
	Rows      int64     `json:"rows,omitempty"`
	Bytes     int64     `json:"bytes,omitempty"`
	Code      string    `json:"code,omitempty"` // gRPC's, of the outcome
	Count     int64     `json:"count,omitempty"`
}
