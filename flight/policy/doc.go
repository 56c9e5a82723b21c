// Package policy decides who may do what with which dataset, and on whose account: it
// reads the files of rules and of tenants, checks and compiles them, and answers for a
// caller. It is pure, with no I/O, clock or goroutine; package flight asks it for each
// call, and holds to the answer.
//
// Rules are tried in order. The first one that is for both the caller and the dataset
// says all: what it does not grant is not granted, whatever later ones say. Where none
// is, nothing is granted, and the dataset does not exist for the caller.
package policy
