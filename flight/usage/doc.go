// Package usage keeps what tenants have used, by day and dataset, in a directory: it
// survives the process, but for what was counted since it was written last. It knows
// nothing of calls or rights: package flight counts, and decides who may look.
package usage
