# hashes.pl COUNT: a hash of so many keys that grows, changes and shrinks; each value is looked at.
use strict;
use warnings;

my $count = shift;
my %value;
$value{"key-$_"} = $_ * 7919 % 1000003 for 0 .. $count - 1;
for (my $i = 0; $i < $count; $i += 3) {
    die "key-$i is missing" unless defined delete $value{"key-$i"};
}
$value{"key-$_"} .= "-again" for grep { $_ % 3 == 1 } 0 .. $count - 1;
for my $i (0 .. $count - 1) {
    my $wanted = $i * 7919 % 1000003 . ($i % 3 == 1 ? "-again" : "");
    if ($i % 3 == 0) { die "key-$i is back" if exists $value{"key-$i"}; }
    elsif ($value{"key-$i"} ne $wanted) { die "key-$i is $value{\"key-$i\"}, not $wanted"; }
}
my @texts = sort values %value;
print scalar(@texts), " values, $texts[0] to $texts[-1]\n";
