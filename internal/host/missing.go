package host

import (
	"errors"
	"os/exec"
)

// IsMissing reports whether err is that of a program which is not installed.
func IsMissing(err error) bool { return errors.Is(err, exec.ErrNotFound) }
