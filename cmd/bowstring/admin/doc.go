// Package admin is the listener for those who operate a server: metrics for
// Prometheus, health for whoever restarts it or sends it clients, and profiles.
// It is plain HTTP or HTTPS on an address of its own, so that it can be kept to
// the machine or to a network of operators, and goes on while a server drains.
//
// Health is answered to all who reach the listener. All else takes the token, if
// one is set; profiles, which show what is in memory, take the token or a caller
// on the same machine. [Options.Authorize] replaces that rule. Without a token, requests
// have to name the server by a name that is its own. The number of connections is bounded.
//
// The package knows nothing of samples, streams or metrics: it is given what to
// show, and imports nothing of Bowstring.
package admin
