// Package icc converts pixels of bytes to sRGB by the ICC profile of their file: profiles of three
// curves and a matrix, as displays and cameras have (Display P3, Adobe RGB, ProPhoto), and profiles of
// grey with one curve. Those that have tables of colours, as printers do, are refused by name.
//
// The profile's format is that of ICC.1:2022. Sums are those of Little CMS 2 for eight bits: the matrix
// in fixed point of 14 bits between two tables. Results are within one level of it.
//
// Profiles are hostile: what is allocated is bounded by the bytes that there are, whatever they
// say. The package knows neither formats of files nor operators.
package icc
