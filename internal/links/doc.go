// Package links stands between the processes of a cluster on one machine, so that what is between them is what a
// test or a benchmark says: links of a latency and a rate, counted, and cut while they are used.
//
// A door is an address that leads to a server by way of a link; several doors may share a link, and its rate. A door
// knows who comes through it where it was told which processes there are. What is said on a connection it does not
// know.
package links
