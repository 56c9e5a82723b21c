//go:build race

package spill

const underRace = true
