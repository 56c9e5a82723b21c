// Package policy decides which rights a caller has on a dataset, and which tenant a call
// is charged to. It parses, checks and compiles the files of rules and of tenants. It has
// no I/O, clock or goroutine: package flight reads the files, asks for a decision on each
// call, and enforces it.
//
// The first rule that matches both the caller and the dataset decides alone: later rules
// add nothing to what it grants. If no rule matches, the caller has no right, and the
// server answers as if the dataset did not exist. Begin with [Rules.Decide] and
// [Tenants.For].
package policy
