// Package hang has a test that does not end; see TestExecute_Stacks.
package hang

import (
	"fmt"
	"testing"
)

func TestHang(*testing.T) {
	fmt.Println("it hangs")
	blockedHere(make(chan int))
}

func blockedHere(c chan int) { <-c }
