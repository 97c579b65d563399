package schema

import (
	"errors"
	"strings"
	"syscall"
)

// Refused is what the system refused, as a full disk or a broken one does, with its Errno (ENOSPC, EDQUOT, EROFS, EIO,
// …); nil: the error is not of the system. It gives no information on the content of the file, which must not be
// set aside because of it.
func Refused(err error) error {
	if err == nil {
		return nil
	}
	if _, told := errors.AsType[syscall.Errno](err); told {
		return err
	}
	if number, lost := lostErrno(err.Error()); lost {
		return &refusedError{err, number}
	}
	return nil
}

// refusedError has the number that bbolt's error has as words alone.
type refusedError struct {
	error
	number syscall.Errno
}

func (e *refusedError) Unwrap() []error { return []error{e.error, e.number} }

// lost are errors of bbolt's that hold what the system said as words alone.
var lost = []string{"file resize error: ", "file sync error: ", "mmap allocate error: "}

// lostErrno finds the number by its words; EIO, if bbolt says that the system refused, but not how.
func lostErrno(text string) (number syscall.Errno, is bool) {
	for _, begins := range lost {
		_, said, found := strings.Cut(text, begins)
		if !found {
			continue
		}
		said, _, _ = strings.Cut(said, "\n")
		const last = 133 // EHWPOISON
		for n := syscall.Errno(1); n <= last; n++ {
			if said == n.Error() || strings.HasSuffix(said, ": "+n.Error()) {
				return n, true
			}
		}
		return syscall.EIO, true
	}
	return 0, false
}
