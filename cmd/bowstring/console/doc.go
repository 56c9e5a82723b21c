// Package console is a page for those who look after a server or use it: what runs, where
// its time goes, and what is in the datasets. It is served below /console/ by the listener
// of operators (cmd/bowstring/admin), from files that the program has in itself.
//
// It is a Flight client like any other: what it shows of datasets it asks the server in
// the same process for, by calls with the token of who looks (package flight's
// ServeWithin), so that rules, limits and the audit log hold for it. What runs is looked at
// once a second for all viewers together, and each is sent what flight.Visitor.Sees.
//
// It changes nothing in the server, asks no other host for anything, and keeps no token
// but in memory.
package console
