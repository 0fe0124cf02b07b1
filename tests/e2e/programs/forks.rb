# forks.rb COUNT: so many objects; children change their copies while the parent changes its own, and
# all of them collect garbage.
count = ARGV[0].to_i
texts = Array.new(count) { |i| "text-#{i}-" + (i * 2_654_435_761 % 4_294_967_291).to_s * 4 }
index = texts.each_with_index.to_h
sum_of = ->(list) { list.inject(0) { |sum, text| (sum * 31 + text.sum) % 1_000_000_007 } }

children = Array.new(2) do |number|
  reader, writer = IO.pipe
  child = fork do
    reader.close
    texts.each_index { |i| texts[i] += "-child#{number}" if i % 3 == number }
    GC.start
    writer.puts sum_of.call(texts)
    writer.close
    exit!(0)
  end
  writer.close
  [child, reader]
end
texts.map!.with_index { |text, i| i.even? ? text.reverse : text }
GC.start
children.each do |child, reader|
  puts reader.read
  Process.wait(child)
  raise "child: #{$?}" unless $?.success?
end
puts sum_of.call(texts)
texts.each_with_index do |text, i|
  raise "text #{i}" unless index[i.even? ? text.reverse : text] == i
end
puts "#{count} texts are right"
