# Checks that scripts/lint and scripts/preflight share. The script that sources it sets suite, sources lib.sh and is in $ROOT.
bad=0
# check NAME COMMAND…: runs a check, prints what it prints, counts it
check() {
  local name=$1 out started=$SECONDS result=pass; shift
  out=$(mktemp)
  "$@" >"$out" 2>&1 || { bad=1 result=fail; }
  cat "$out"
  step "$suite: $name: $result"
  record "$suite" "$name" $result $((SECONDS - started)) "$out"
  rm -f "$out"
}
scripts_parse() {
  local f code=0
  for f in scripts/* systemtests/sandbox/* systemtests/sandbox/hooks/* .ci/run; do
    [ -d "$f" ] || ! head -c 200 "$f" | grep -Eq '^#!/bin/bash|lib\.sh|scripts' || [[ $f == *.md || $f == *.json ]] || bash -n "$f" || code=1
  done
  return $code
}
formatted() {
  local out
  out=$(find . -name '*.go' -not -path './bin/*' -not -path './.git/*' -print0 | xargs -0 gofmt -l) || return 1
  [ -z "$out" ] || { printf 'gofmt -w %s\n' $out; return 1; }
}
# quick_checks: what takes seconds and compiles nothing; it needs helm
quick_checks() {
  check gofmt formatted
  check scripts scripts_parse
  check subjects scripts/subjects
  check chart scripts/manifests -check
}
