// Package watch says what went on between two looks at a server: rates, shares of time,
// progress and when it will be over. bowstring top prints it, the console draws it, so that
// both say the same. It computes from the server's statistics alone: it asks nobody, keeps
// nothing and has no clock of its own.
package watch
