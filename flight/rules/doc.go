// Package rules decides who may do what with which dataset: it reads the file of rules,
// checks and compiles it, and answers for a caller and a dataset. It is pure, with no
// I/O, clock or goroutine; package flight asks it for each call, and holds to the answer.
//
// Rules are tried in order. The first one that is for both the caller and the dataset
// says all: what it does not grant is not granted, whatever later ones say. Where none
// is, nothing is granted, and the dataset does not exist for the caller.
package rules
