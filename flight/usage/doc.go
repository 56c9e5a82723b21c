// Package usage records the resources that each tenant has used, by day and dataset, in a
// directory. The record survives the process, except for the amounts since the last
// write. The package knows nothing of calls or rights: package flight measures, and
// decides which callers may see the record. Begin with [Book].
package usage
