package program

import (
	"errors"
	"fmt"
)

var (
	// ErrDamaged says that a cell's bytes are not what the first step takes.
	ErrDamaged = errors.New("damaged sample")
	// ErrNotSupported says that a cell is of a kind, or of a variant of one, that no decoder here reads. It may be whole.
	ErrNotSupported = errors.New("not supported")
	// ErrTooLarge says that a cell would become larger than the limits allow.
	ErrTooLarge = errors.New("sample too large")
	// ErrUnavailable says that the cell is not at fault: what makes something of it is not there just now.
	ErrUnavailable = errors.New("cannot be made just now")
)

// StepError says which step of a list is wrong, and how.
type StepError struct {
	// Step is its index; Name is its operator.
	Step int
	Name string
	// Param is the parameter at fault, or empty.
	Param string
	// Reason says what it got and what it takes.
	Reason string
}

func (e *StepError) Error() string {
	if e.Param == "" {
		return fmt.Sprintf("step %d (%s): %s", e.Step, e.Name, e.Reason)
	}
	return fmt.Sprintf("step %d (%s): %s: %s", e.Step, e.Name, e.Param, e.Reason)
}
