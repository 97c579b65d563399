package main

import (
	"reflect"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
	"github.com/spf13/pflag"
)

// countFields returns how many numbers a struct of budgets has.
func countFields(v reflect.Value) (n int) {
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Struct {
			n += countFields(f)
		} else {
			n++
		}
	}
	return n
}

// TestBudgetFlags sets each field by a flag of its own, and refuses what makes no sense.
func TestBudgetFlags(t *testing.T) {
	var b policy.Budgets
	var services service.Budgets
	f := pflag.NewFlagSet("netmaster", pflag.ContinueOnError)
	addBudgetFlags(f, &b, &services)
	if err := checkBudgets(&b, &services); b != policy.DefaultBudgets || services != service.DefaultBudgets || err != nil {
		t.Errorf("without flags: %+v, %+v, %v", b, services, err)
	}
	values := map[*int]bool{}
	for _, flag := range append(budgetFlags(&b), serviceFlags(&services)...) {
		values[flag.value] = true
	}
	if want := countFields(reflect.ValueOf(b)) + countFields(reflect.ValueOf(services)); len(values) != want {
		t.Errorf("%d flags of %d budgets", len(values), want)
	}
	for _, args := range [][]string{
		{"--max-policy-rules=0"},
		{"--max-policy-peers=20000"},
		{"--max-policy-members=9000000"},
		{"--max-service-ranges=0"},
		{"--max-service-endpoints=1000000"},
	} {
		f := pflag.NewFlagSet("netmaster", pflag.ContinueOnError)
		addBudgetFlags(f, &b, &services)
		if err := f.Parse(args); err != nil || checkBudgets(&b, &services) == nil {
			t.Errorf("%q is taken: %v", args, err)
		}
	}
}
