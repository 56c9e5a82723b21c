// Package metrics shows what a server counts as Prometheus metrics: a collector
// that reads the counters of server, engine, spill and store when it is scraped,
// so that streams pay nothing for it, and the few histograms that somebody has to
// be told for, once a call.
//
// It lives below cmd because it looks at all of them, and flight may be imported
// by nobody else. What serves the metrics is package admin; what they mean to
// whoever is paged is in docs/operating.md, and the rules and dashboards that
// query them are in deploy.
//
// The number of series is bounded, whoever calls what: labels whose values are
// made by clients have so many values by name, and the rest is added up as
// "other". See [capped].
package metrics
